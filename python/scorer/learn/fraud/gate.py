"""The gate of a score checkpoint: whether a candidate replaces the live bundle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scorer.bundle import read_manifest
from scorer.learn.fraud.compare import ScoreComparison, compare_bundles, last_row
from scorer.learn.fraud.measures import Measure
from scorer.learn.fraud.settings import FraudSettings, ScoreGateSettings
from scorer.learn.fraud.windows import TimeSpan
from scorer.learn.gate.settings import GateSettings
from scorer.learn.gate.verdict import (
    Check,
    JudgedBundle,
    SegmentVerdict,
    ValueInterval,
    Verdict,
    VerdictEvidence,
    Window,
    content_digest,
)
from scorer.learn.levels import level_name


def judge_scores(
    data: Path,
    candidate: Path,
    live: Path,
    fraud: FraudSettings,
    gate: GateSettings,
    *,
    window: TimeSpan | None = None,
) -> Verdict:
    """Judge a candidate on payments that neither bundle was trained on: promote, or wait.

    Args:
        data: Parquet file of labelled payments.
        candidate: The bundle that may become live.
        live: The live bundle.
        fraud: Costs, columns, the bootstrap and the conditions.
        gate: Segments, the least number of rows, and whether a lineage is needed.
        window: Period to judge on; None: all payments after the training of both.

    Raises:
        DataError: See `compare_bundles`.
    """
    found = compare_bundles(data, candidate, live, fraud, window=window)
    one, other = _bundle(candidate), _bundle(live)
    difference = _interval(found.differences.value_share, found.challenger.rows)
    segments = _segments(found, fraud, gate)
    checks = (
        _unseen(one, gate),
        _enough(found, fraud.gate, gate),
        _calibrated(found, fraud.gate),
        _segment_check(segments, gate),
        _value(difference, fraud.gate),
        _precision(found.differences.average_precision, fraud.gate),
    )
    failed = tuple(check.says for check in checks if not check.passed)
    evidence = VerdictEvidence(
        decision="wait" if failed else "promote",
        share=0.0 if failed else 1.0,
        reasons=failed or ("every condition is met",),
        candidate=one,
        live=other,
        window=Window(
            experience=found.data_digest,
            start_ms=found.window.start_ms,
            end_ms=int(found.table.time_ms[-1]),
            decisions=len(found.table),
            settled=len(found.table),
            missing=0,
        ),
        difference=difference,
        value=_interval(found.challenger.value_share, found.challenger.rows),
        live_value=_interval(found.champion.value_share, found.champion.rows),
        # Every payment has a label and no draw of a policy is weighted.
        effective_rows=float(len(found.table)),
        mean_weight=1.0,
        largest_weight=1.0,
        support=1.0,
        distance=found.changed,
        lanes=None,
        checks=checks,
        segments=segments,
        caps=(),
        settings={"gate": gate.model_dump(mode="json"), "fraud": fraud.model_dump(mode="json")},
        scores={
            "candidate": found.challenger.as_dict(),
            "live": found.champion.as_dict(),
            "differences": found.differences.as_dict(),
        },
    )
    return Verdict(bundle=None, evidence=evidence, figures={})


def _bundle(path: Path) -> JudgedBundle:
    manifest = read_manifest(path)
    document: Mapping[str, Any] = json.loads((path / "manifest.json").read_bytes())
    return JudgedBundle(
        name=manifest.name,
        digest=manifest.digest,
        content=content_digest(document),
        learned_until_ms=last_row(manifest),
    )


def _interval(found: Measure, rows: int) -> ValueInterval:
    return ValueInterval(value=found.value, low=found.low, high=found.high, rows=rows)


def _unseen(candidate: JudgedBundle, gate: GateSettings) -> Check:
    known = candidate.learned_until_ms is not None
    says = "no payment of the window is in the training of the candidate"
    if not known:
        says = (
            "the lineage of the candidate has no time of its training data: build it with "
            "`scorer learn fraud train`, or set gate.require_lineage = false"
        )
    return Check(name="unseen", passed=known or not gate.require_lineage, says=says)


def _enough(found: ScoreComparison, rule: ScoreGateSettings, gate: GateSettings) -> Check:
    rows, positives = found.challenger.rows, found.challenger.positives
    return Check(
        name="decisions",
        passed=rows >= gate.min_rows and positives >= rule.positives,
        says=f"{rows:,} payments with {positives:,} positive labels that neither bundle was trained on, "
        f"{gate.min_rows:,} and {rule.positives:,} are needed",
    )


def _calibrated(found: ScoreComparison, rule: ScoreGateSettings) -> Check:
    low, high = rule.calibration
    ratio = found.challenger.calibration
    return Check(
        name="calibration",
        passed=low <= ratio <= high,
        says=f"the mean score is {ratio:.2f} times the share of positive labels, {low:g} to {high:g} is "
        "allowed",
    )


def _value(difference: ValueInterval, rule: ScoreGateSettings) -> Check:
    low = -np.inf if difference.low is None else difference.low
    shown = "unknown" if difference.low is None else f"{low * 100:+.3f} points of the turnover"
    return Check(
        name="value",
        passed=bool(low > -rule.value_margin),
        says=f"the lower bound of the gain over the live bundle is {shown}, above "
        f"{-rule.value_margin * 100:+.3f} is needed",
    )


def _precision(difference: Measure, rule: ScoreGateSettings) -> Check:
    low = -np.inf if difference.low is None else difference.low
    shown = "unknown" if difference.low is None else f"{low:+.4f}"
    return Check(
        name="average precision",
        passed=bool(low > -rule.precision_margin),
        says=f"the lower bound of the difference of the average precision is {shown}, above "
        f"{-rule.precision_margin:+.4f} is needed",
    )


def _segments(found: ScoreComparison, fraud: FraudSettings, gate: GateSettings) -> tuple[SegmentVerdict, ...]:
    """Return the gain in each value of each configured feature, with bounds that hold for all together."""
    names = [one.name for one in found.table.features]
    masks = []
    for column in gate.segments:
        if column not in names:
            continue
        place = names.index(column)
        codes = found.table.rows[:, place]
        levels = [
            *np.unique(codes[~np.isnan(codes)]).tolist(),
            *([float("nan")] if np.isnan(codes).any() else []),
        ]
        for code in levels:
            mask = np.isnan(codes) if np.isnan(code) else codes == code
            if int(mask.sum()) >= gate.segment_rows:
                name = level_name(found.table.features[place].categories, code)
                masks.append((column, name, mask))
    one, other = found.answers
    confidence = 1 - (1 - fraud.confidence) / max(len(masks), 1)
    verdicts = []
    for column, name, mask in masks:
        gained = found.judge.gain_between(one, other, mask, confidence)
        interval = _interval(gained, int(mask.sum()))
        state: Any = "inconclusive"
        if interval.high is not None and interval.high < 0 and gained.value < -fraud.gate.value_margin:
            state = "harmed"
        elif interval.low is not None and interval.low > -fraud.gate.value_margin:
            state = "safe"
        verdicts.append(SegmentVerdict(column=column, value=name, difference=interval, state=state))
    return tuple(verdicts)


def _segment_check(segments: tuple[SegmentVerdict, ...], gate: GateSettings) -> Check:
    harmed = [f"{one.column} {one.value}" for one in segments if one.state == "harmed"]
    says = f"harmed: {', '.join(harmed)}"
    if not harmed:
        unknown = sum(one.state == "inconclusive" for one in segments)
        says = f"none of {len(segments)} segments is shown to lose value; {unknown} are inconclusive"
        if not segments:
            says = (
                "no segments are configured, or none has enough payments"
                if gate.segments
                else "none is configured"
            )
    return Check(name="segments", passed=not harmed, says=says)
