"""Synthetic observations with known causes, and reports of them, for tests of pages and gates."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np

from loadtests.windows import LABELS, START, fraud_scores, latencies, observed, twin
from scorer.bundle.statistics import distribution
from scorer.release.answers import Readout
from scorer.release.gates.defaults import default_gates
from scorer.release.gates.evaluate import evaluate
from scorer.release.gates.evidence import Counter, Flip, Observed, ShadowEvidence, empty
from scorer.release.model import GateSpec, Outcome
from scorer.release.readout.build import ReportSubject, build
from scorer.release.readout.segments import gate_of, measured, segment_report

COUNTRIES = ("NL", "DE", "FR", "ES", "IT", "BE", "AT", "PL")
AMOUNTS = ("below 20", "20 to 100", "from 100")
ACTIONS = ("", "frictionless|none", "frictionless|tra", "challenge|none", "challenge|low", "skip|tra")


def retrained(rows: int = 20_000, seed: int = 7, *, minutes: float = 60) -> ShadowEvidence:
    """Return the evidence of a retrained bundle with other scores and a little more latency.

    Most of its decisions are those of the live bundle. A few observations are dropped.
    """
    random = np.random.default_rng(seed)
    live = fraud_scores(rows, random)
    margin = np.log(live / (1 - live)) + random.normal(0, 0.12, rows)
    own = 1 / (1 + np.exp(-np.round(margin * 12) / 12))
    shadow = observed(
        rows, random, live=live, own=own, exec_us=latencies(rows, random, median=390), minutes=minutes
    )
    past = 1 / (1 + np.exp(-np.round((np.log(live / (1 - live)) + random.normal(0, 0.12, rows)) * 12) / 12))
    shadow = segmented(shadow, random)
    return ShadowEvidence(
        kind="score",
        sla_us=5_000,
        shadow=shadow,
        control=twin(shadow, random),
        training=distribution(past),
        reference=distribution(past[: rows // 3]),
        bands=LABELS[1:],
        counters=counters(shadow, random),
        flips=flips(shadow),
        parity=(2_000, 0.0),
    )


def actions(rows: int = 8_000, seed: int = 9) -> ShadowEvidence:
    """Return the evidence of an action bundle that is compared with another one on the same contexts."""
    random = np.random.default_rng(seed)
    shadow = observed(rows, random)
    count = len(ACTIONS) - 1
    base = random.dirichlet(np.full(count, 0.6), rows)
    own = 0.9 * base + 0.1 * random.dirichlet(np.full(count, 0.6), rows)
    floored = [0.01 + (1 - 0.01 * count) * pmf for pmf in (base, own)]
    drawn = [
        (random.random((rows, 1)) > np.cumsum(pmf, axis=1)).sum(axis=1).clip(0, count - 1) for pmf in floored
    ]
    at = np.arange(rows)
    shadow = replace(
        shadow,
        live_score=np.clip(0.85 + 0.08 * random.normal(size=rows), 0, 1),
        score=np.clip(0.86 + 0.08 * random.normal(size=rows), 0, 1),
        live_label=1 + drawn[0],
        label=1 + drawn[1],
        live_top=1 + floored[0].argmax(axis=1),
        top=1 + floored[1].argmax(axis=1),
        propensity=floored[1][at, drawn[1]],
        live_propensity=floored[0][at, drawn[0]],
        ratio=floored[1][at, drawn[0]] / floored[0][at, drawn[0]],
        distance=np.abs(floored[0] - floored[1]).sum(axis=1) / 2,
        least=floored[1].min(axis=1),
        names={**shadow.names, "label": list(ACTIONS)},
    )
    shadow = segmented(shadow, random)
    paid = (random.random(rows) < shadow.live_score).astype(np.float64)
    return ShadowEvidence(
        kind="action",
        sla_us=8_000,
        shadow=shadow,
        control=twin(shadow, random),
        counters=counters(shadow, random),
        flips=flips(shadow),
        parity=(2_000, 0.0),
        outcomes={"authorised": (shadow.key, paid)},
        outcome="authorised",
        matured_before=int(shadow.at.max()) + 1,
    )


def segmented(shadow: Observed, random: np.random.Generator) -> Observed:
    """Add segments by country and by band of amount. All payments that only the candidate flags are in BE."""
    rows = len(shadow)
    weights = np.geomspace(1, 0.02, len(COUNTRIES))
    country = 1 + random.choice(len(COUNTRIES), rows, p=weights / weights.sum())
    added = (shadow.live_label == 1) & (shadow.label > 1) & (shadow.top == 0)
    country[added] = 1 + COUNTRIES.index("BE")
    return replace(
        shadow,
        segments=np.stack([country, random.integers(1, len(AMOUNTS) + 1, rows)], axis=1).astype(np.int32),
        names={
            **shadow.names,
            "segments": ["country", "amount"],
            "segment:country": ["", *COUNTRIES],
            "segment:amount": ["", *AMOUNTS],
        },
    )


def counters(shadow: Observed, random: np.random.Generator) -> list[Counter]:
    """Return one reading of the counters per minute and server."""
    readings = []
    for server in (1, 2):
        at = shadow.at[shadow.server == server]
        dropped = 0
        for minute in range(int(at.min()), int(at.max()) + 60_000_000, 60_000_000):
            done = int((at <= minute).sum())
            dropped += int(random.poisson(1.5))
            readings.append(
                Counter(
                    at=minute,
                    server=shadow.servers()[server],
                    lane="cr-000001",
                    seen=10 * (done + dropped),
                    taken=done + dropped,
                    dropped=dropped,
                    shed=0,
                    failed=0,
                    unlogged=0,
                    evaluated=done,
                )
            )
    return readings


def flips(shadow: Observed) -> list[Flip]:
    names = shadow.labels()
    listed = []
    for row in np.flatnonzero(shadow.flipped)[:200]:
        own, live = (shadow.top, shadow.live_top) if shadow.top[row] else (shadow.label, shadow.live_label)
        listed.append(
            Flip(
                decision=f"payment-{int(shadow.key[row]) % 10**8:08}",
                at=int(shadow.at[row]),
                live_label=names[int(live[row])],
                label=names[int(own[row])],
                live_score=float(shadow.live_score[row]),
                score=float(shadow.score[row]),
                features=(("amount", 12.5, 13.0),) if row % 3 == 0 else (),
            )
        )
    return listed


def synthetic_readout(
    kind: str = "score",
    *,
    rows: int = 20_000,
    seed: int = 7,
    gates: tuple[GateSpec, ...] | None = None,
    change: str = "cr-000001",
    is_final: bool = True,
    verdict: Outcome | None = Outcome.PASS,
) -> Readout:
    """Return a report as pages draw it. `kind` is "score", "action" or "nothing" (no observation yet)."""
    if kind == "nothing":
        evidence = ShadowEvidence(kind="score", sla_us=5_000, shadow=empty(), control=empty())
    else:
        evidence = actions(rows, seed) if kind == "action" else retrained(rows, seed)
    about = ReportSubject(
        change,
        "action.authorise" if kind == "action" else "fraud.checkout",
        "sha256:" + "ab" * 32,
        "sha256:" + "cd" * 32,
        START,
        START + timedelta(minutes=60),
    )
    specs = default_gates(evidence.kind) if gates is None else gates
    report = segment_report(evidence)
    specs = [*specs, *gate_of(report, specs, decides=False)]
    results = evaluate(specs, evidence, segments=measured(report))
    return build(about, evidence, results, verdict=verdict, is_final=is_final, segments=report)
