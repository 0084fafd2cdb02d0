"""Simulated windows of observations with known causes, for the calibration and the tests of gates."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from scorer.bundle.statistics import distribution
from scorer.release.gates.evidence import Observed, ShadowEvidence

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
LABELS = ("", "approve", "review", "decline")
THRESHOLDS = (0.1, 0.5)
SHAPES = ("tied", "skewed", "wide")


def fraud_scores(rows: int, random: np.random.Generator, *, shape: str = "tied", shift: float = 0.0) -> Any:
    """Return scores of payments.

    Args:
        rows: Number of scores.
        random: Source of randomness.
        shape: "tied": most scores are near 0 and many are equal, like sums of few leaves; "skewed": the same
            without ties; "wide": spread over 0 to 1.
        shift: Amount added to every logit.
    """
    if shape == "wide":
        margin = random.normal(0, 1.5, rows)
    else:
        margin = random.normal(-4.2, 1.3, rows) + (random.random(rows) < 0.03) * random.normal(4, 1, rows)
    if shape == "tied":
        margin = np.round(margin * 6) / 6
    return 1 / (1 + np.exp(-(margin + shift)))


def latencies(
    rows: int,
    random: np.random.Generator,
    *,
    median: float = 320.0,
    spread: float = 0.45,
    bursts: bool = False,
) -> Any:
    """Return latencies in microseconds: a log-normal body and a tail of scheduling delays.

    With `bursts`, slow requests follow one another.
    """
    body = median * np.exp(random.normal(0, spread, rows))
    times = body + (random.random(rows) < 0.004) * random.exponential(6 * median, rows)
    if bursts:
        slow = np.repeat(random.random(-(-rows // 50)) < 0.03, 50)[:rows]
        times *= np.where(slow, random.uniform(1.5, 3.0, rows), 1.0)
    return np.round(times)


def labels(scores: Any) -> Any:
    """Return the codes of the scores' labels in `LABELS`."""
    return 1 + np.searchsorted(THRESHOLDS, scores, side="right")


def observed(
    rows: int,
    random: np.random.Generator,
    *,
    live: Any = None,
    own: Any = None,
    exec_us: Any = None,
    minutes: float = 60,
    servers: int = 2,
    full: bool = True,
) -> Observed:
    """Return observations of a score checkpoint. By default the lane's scores equal those of live.

    With `full`, live has separate times and evaluations have a lag; no gate reads these.
    """
    live = fraud_scores(rows, random) if live is None else live
    own = live if own is None else own
    begin = int(START.timestamp() * 1e6)
    zeros = np.zeros(rows, np.int64)
    nothing = np.full(rows, np.nan)
    exec_us = latencies(rows, random) if exec_us is None else exec_us
    load_us = latencies(rows, random, median=40)
    return Observed(
        key=random.integers(1, 2**63, rows).astype(np.uint64),
        at=np.sort(random.integers(begin, begin + int(minutes * 60e6), rows)),
        server=random.integers(1, servers + 1, rows),
        score=np.asarray(own, dtype=np.float64),
        live_score=np.asarray(live, dtype=np.float64),
        label=labels(own),
        live_label=labels(live),
        error=zeros,
        live_fallback=zeros,
        exec_us=exec_us,
        load_us=load_us,
        live_exec_us=latencies(rows, random) if full else exec_us,
        live_load_us=latencies(rows, random, median=40) if full else load_us,
        lag_us=latencies(rows, random, median=900) if full else load_us,
        absent=zeros,
        differs=zeros,
        propensity=nothing,
        live_propensity=nothing,
        ratio=nothing,
        distance=nothing,
        least=nothing,
        top=zeros,
        live_top=zeros,
        segments=np.zeros((rows, 0), np.int32),
        names={
            "label": list(LABELS),
            "server": ["", *(f"live-{n}" for n in range(1, servers + 1))],
            "error": ["", "panic", "non_finite", "features", "error"],
            "live_fallback": ["", "late"],
        },
    )


def twin(one: Observed, random: np.random.Generator) -> Observed:
    """Return the A/A control of these rows: the live bundle again, with separate times."""
    known = np.isfinite(one.distance).any()
    return replace(
        one,
        score=one.live_score,
        label=one.live_label,
        error=np.zeros_like(one.error),
        exec_us=latencies(len(one), random),
        top=one.live_top,
        distance=np.zeros_like(one.distance) if known else one.distance,
    )


def same_bundle(
    rows: int,
    random: np.random.Generator,
    *,
    shape: str = "tied",
    reference_rows: int = 5_000,
    sla_us: float = 5_000,
    exec_us: Any = None,
) -> ShadowEvidence:
    """Return evidence of the same bundle twice, with traffic like that of its validation."""
    live = fraud_scores(rows, random, shape=shape)
    shadow = observed(rows, random, live=live, exec_us=exec_us, full=False)
    reference = distribution(fraud_scores(reference_rows, random, shape=shape))
    return ShadowEvidence(
        kind="score",
        sla_us=sla_us,
        shadow=shadow,
        control=twin(shadow, random),
        training=reference,
        reference=reference,
        parity=(min(rows, 2_000), 0.0),
    )


def canary(
    rows: int, random: np.random.Generator, *, shape: str = "tied", shift: float = 0.0
) -> ShadowEvidence:
    """Return evidence of a canary with as many requests as the lane before it, of the same kind."""
    own = observed(rows, random, live=fraud_scores(rows, random, shape=shape, shift=shift))
    before = observed(rows, random, live=fraud_scores(rows, random, shape=shape))
    return ShadowEvidence(
        kind="score",
        sla_us=5_000,
        shadow=own,
        control=before,
        reference=distribution(fraud_scores(5_000, random, shape=shape)),
    )
