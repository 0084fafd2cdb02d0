"""The candidate beside the live bundle, segment by segment.

Each segment with enough rows is compared by the metrics and the limits of the standard gates. A segment is
clearly worse where a bound breaks such a limit. All comparisons of a report share one probability of doing
so by chance, evenly (Bonferroni), so the bounds of all segments hold together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scorer.release.answers import SegmentReport, SegmentResult, SegmentValue
from scorer.release.gates import interim
from scorer.release.gates.defaults import default_gates
from scorer.release.gates.evaluate import SEGMENT_ALARM, Measure
from scorer.release.gates.evidence import Bools, Ints, Observed, ShadowEvidence, outcome_of
from scorer.release.gates.grammar import Gate, read
from scorer.release.gates.measured import Measured, nothing
from scorer.release.gates.metrics import measure, quantity
from scorer.release.gates.names import METRICS, SEGMENTS
from scorer.release.gates.words import number
from scorer.release.model import GateSpec
from scorer.release.readout.canary import measure_canary
from scorer.release.segments.split import band_words, by_band, largest
from scorer.stats import proportions
from scorer.stats.interim import alpha_share
from scorer.stats.interval import Interval
from scorer.stats.means import student

SHADOW: Final = "shadow"
_COMPARED: Final = (
    "approve_rate_delta",
    "flagged_share_change",
    "flagged_agreement",
    "auc_matured",
    "policy_distance",
    "expected_reward_delta",
)
"""Standard gates that segments are compared by."""
_OF_CANARY: Final = ("approve_rate_delta",)
"""Those that two lanes of different requests show."""
_POSITIVES: Final = 30
"""Fewest positive and negative rows of a segment whose AUC is compared: the bounds are those of a normal."""
_WORST: Final = 10
"""Segments that a sentence names."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """The places of one segment's rows; the rows of one segment at a time are copied."""

    feature: str
    level: str
    own: Ints
    live: Ints

    def of(self, evidence: ShadowEvidence, *, paired: bool) -> ShadowEvidence:
        """Return the evidence of the segment alone."""
        control = evidence.control if paired else evidence.control.take(self.live)
        return replace(evidence, shadow=evidence.shadow.take(self.own), control=control)


def segment_report(evidence: ShadowEvidence, *, stage: str = SHADOW) -> SegmentReport | None:
    """Compare both bundles in each segment; None: no feature splits the rows.

    A canary is compared at growing numbers of rows, each time with its own share of the alarms, because its
    report is read again and again: the report is that of the latest such interim analysis.

    Args:
        evidence: Paired rows of a shadow; of a canary both lanes.
        stage: `shadow`, or the stage of the canary.
    """
    features = evidence.shadow.segment_features
    if not features:
        return None
    alarm, paired = SEGMENT_ALARM, stage == SHADOW
    if not paired:
        evidence, alarm = _interim(evidence)
    shadow = evidence.shadow
    evidence = replace(
        evidence,
        shadow=shadow.take(shadow.comparable) if paired else shadow,
        counters=(),
        flips=(),
        read=None,
        parity=None,
    )
    cuts = [cut for at, name in enumerate(features) for cut in _cuts(evidence, at, name, paired=paired)]
    gates = [
        read(spec)
        for spec in default_gates(evidence.kind)
        if spec.metric in (_COMPARED if paired else _OF_CANARY)
    ]
    judged = sum(_is_judged(cut, evidence) for cut in cuts)
    alpha = alarm / max(judged * len(gates), 1)
    results = tuple(_result(cut, evidence, gates, alpha, paired=paired) for cut in cuts)
    worse = tuple(f"{_name(one)}: {why}" for one in results for why in one.worse)
    return SegmentReport(
        features=features,
        labels=tuple(evidence.bands) if evidence.kind == "score" else (),
        segments=results,
        worse=worse,
        judged=judged,
        alarm=SEGMENT_ALARM,
        confidence=1 - alpha / 2,
        least=evidence.segments.rows,
        stage=stage,
        decides=evidence.segments.decides,
        words=_words(results, judged, evidence.segments.rows),
        notes=tuple(evidence.segment_notes),
    )


def measured(report: SegmentReport | None) -> Measured:
    """Return the number of segments in which the candidate is clearly worse, as a gate's metric."""
    if report is None:
        return nothing("rows are not split by any feature")
    rows = max((one.rows for one in report.segments), default=0)
    if not report.judged:
        return nothing(f"no segment has {report.least:,} rows yet", rows)
    count = sum(bool(one.worse) for one in report.segments)
    return Measured(float(count), rows, remark="; ".join(report.worse[:_WORST]))


def gate_of(report: SegmentReport | None, specs: Sequence[GateSpec], *, decides: bool) -> list[GateSpec]:
    """Return the gate of segments where there is something to decide or to report, and no gate names it."""
    if any(spec.metric == SEGMENTS for spec in specs) or not (decides or (report and report.worse)):
        return []
    return [GateSpec(SEGMENTS, "== 0", dry_run=not decides)]


def _interim(evidence: ShadowEvidence) -> tuple[ShadowEvidence, float]:
    """Return the rows of the latest interim analysis and its share of the alarms."""
    looks = list(interim.prefixes(evidence))
    if not looks:
        return interim.none_of(evidence), SEGMENT_ALARM
    return looks[-1], SEGMENT_ALARM * alpha_share(len(looks))


def _cuts(evidence: ShadowEvidence, at: int, feature: str, *, paired: bool) -> list[_Cut]:
    own = evidence.shadow
    others = None if paired else evidence.control.segments[:, at] - 1
    levels, most = own.segment_levels(feature)[1:], evidence.segments.most
    found = largest(own.segments[:, at] - 1, levels, most, others=others)
    if limits := dict(evidence.segments.bands).get(feature):
        found = by_band(found, band_words(limits))
    return [_Cut(feature, level, mine, mine if paired else theirs) for level, mine, theirs in found]


def _is_judged(cut: _Cut, evidence: ShadowEvidence) -> bool:
    return min(len(cut.own), len(cut.live)) >= evidence.segments.rows


def _result(
    cut: _Cut, evidence: ShadowEvidence, gates: Sequence[Gate], alpha: float, *, paired: bool
) -> SegmentResult:
    judged = _is_judged(cut, evidence)
    plain = SegmentResult(
        feature=cut.feature,
        level=cut.level,
        rows=len(cut.own),
        live_rows=len(cut.live),
        judged=judged,
        live={},
        candidate={},
        swapped_in=None,
        swapped_out=None,
        measures={},
        worse=(),
    )
    if not judged:
        return plain
    evidence = cut.of(evidence, paired=paired)
    rows, by = evidence.shadow, measure if paired else measure_canary
    measures: dict[str, SegmentValue] = {}
    worse = []
    for gate in gates:
        found = _measured(gate, evidence, by)
        if found.missing:
            continue
        value, why = _compared(gate, found, alpha)
        measures[gate.spec.metric] = value
        if why:
            worse.append(why)
    if evidence.kind == "action":
        measures |= _actions(rows, alpha) if paired else _rewards(evidence, alpha)
        return replace(plain, measures=measures, worse=tuple(worse))
    live = rows if paired else evidence.control
    swapped = _swapped(evidence) if paired else (None, None)
    return replace(
        plain,
        live=_shares(live, live.live_label if paired else live.label),
        candidate=_shares(rows, rows.label),
        swapped_in=swapped[0],
        swapped_out=swapped[1],
        measures=measures | (_calibration(evidence, alpha) if paired else {}),
        worse=tuple(worse),
    )


def _measured(gate: Gate, evidence: ShadowEvidence, by: Measure) -> Measured:
    if gate.when is not None and not gate.when.holds(quantity(gate.when.quantity, evidence)):
        return nothing("the condition of the gate does not hold")
    if gate.spec.metric == "auc_matured":
        rows = evidence.shadow.take(evidence.shadow.at < evidence.matured_before)
        positive = int((outcome_of(evidence, rows) > 0.5).sum())
        if min(positive, len(rows) - positive) < _POSITIVES:
            return nothing(f"{_POSITIVES} rows of each class are needed")
    minus = bool(gate.spec.minus) and len(evidence.control) > 0
    return by(gate.spec.metric, evidence, gate.against, minus)


def _compared(gate: Gate, found: Measured, alpha: float) -> tuple[SegmentValue, str]:
    """Return a value with its bounds, and in which way it is clearly worse; empty: it is not."""
    assert found.bounds is not None  # noqa: S101 - every metric that is compared has bounds
    low, high = found.bounds(1 - alpha / 2)
    value = SegmentValue(_plain(found.value), _plain(low), _plain(high))
    limit, success = gate.success.limit.number, gate.success
    if success.absolute:
        fails = low > limit or high < -limit
        asked = f"between ±{number(limit, gate.names.unit)}"
    elif success.is_upper:
        fails, asked = low > limit, f"at most {number(limit, gate.names.unit)}"
    else:
        fails, asked = high < limit, f"at least {number(limit, gate.names.unit)}"
    if not fails:
        return value, ""
    title, unit = METRICS[gate.spec.metric].title, gate.names.unit
    title = f"{title[0].lower()}{title[1:]}"
    return value, (
        f"{title} is {number(found.value, unit)} (bounds {number(low, unit)} to {number(high, unit)}, "
        f"over {found.rows:,} rows); required: {asked}"
    )


def _shares(rows: Observed, codes: Ints) -> dict[str, float]:
    counts = np.bincount(codes, minlength=1)
    names = rows.labels()
    return {names[code]: int(count) / len(rows) for code, count in enumerate(counts) if count and code}


def _swapped(evidence: ShadowEvidence) -> tuple[int | None, int | None]:
    rows = evidence.shadow
    names = rows.labels()
    if evidence.approve not in names:
        return None, None
    code = names.index(evidence.approve)
    own, live = rows.label != code, rows.live_label != code
    return int((own & ~live).sum()), int((live & ~own).sum())


def _calibration(evidence: ShadowEvidence, alpha: float) -> dict[str, SegmentValue]:
    """Sums of the scores over the number of positive outcomes, of scores that are probabilities."""
    rows = evidence.shadow
    rows = rows.take(rows.at < evidence.matured_before)
    if not len(rows):
        return {}
    positive = int((outcome_of(evidence, rows) > 0.5).sum())
    sides = {"calibration": rows.score, "calibration_live": rows.live_score}
    if not positive or any(one.min() < 0 or one.max() > 1 for one in sides.values()):
        return {}
    low, high = proportions.wilson(positive, len(rows), 1 - alpha / 2)
    return {
        name: SegmentValue(
            float(scores.sum()) / positive,
            float(scores.mean()) / high,
            float(scores.mean()) / low if low > 0 else None,
        )
        for name, scores in sides.items()
    }


def _actions(rows: Observed, alpha: float) -> dict[str, SegmentValue]:
    """Share of the same likeliest action, and the change of the reward that each bundle expects."""
    same: Bools = ~rows.flipped
    hits = int(same.sum())
    change = rows.score - rows.live_score
    bounds = student(change, confidence=1 - alpha / 2)
    low, high = proportions.wilson(hits, len(rows), 1 - alpha / 2)
    return {
        "same_action": SegmentValue(hits / len(rows), low, high),
        "expected_reward": _interval(float(change.mean()), bounds),
        "reward_live": SegmentValue(float(rows.live_score.mean()), None, None),
        "reward_candidate": SegmentValue(float(rows.score.mean()), None, None),
    }


def _rewards(evidence: ShadowEvidence, alpha: float) -> dict[str, SegmentValue]:
    """Mean expected reward of two lanes, and the bounds of their difference."""
    own, live = (one.score[np.isfinite(one.score)] for one in (evidence.shadow, evidence.control))
    if len(own) < 2 or len(live) < 2:
        return {}
    first, second = (student(one, confidence=1 - alpha / 4) for one in (own, live))
    bounds = Interval(first.low - second.high, first.high - second.low)
    return {
        "expected_reward": _interval(float(own.mean() - live.mean()), bounds),
        "reward_live": SegmentValue(float(live.mean()), None, None),
        "reward_candidate": SegmentValue(float(own.mean()), None, None),
    }


def _interval(value: float, bounds: Interval) -> SegmentValue:
    return SegmentValue(_plain(value), _plain(bounds.low), _plain(bounds.high))


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _name(one: SegmentResult) -> str:
    return f"{one.feature} {one.level}"


def _words(results: Sequence[SegmentResult], judged: int, least: int) -> str:
    worse = [one for one in results if one.worse]
    few = len(results) - judged
    said = f"{judged:,} segments are compared"
    if few:
        said += f", {few:,} have fewer than {least:,} rows"
    if not judged:
        return f"No segment has {least:,} rows yet."
    if not worse:
        return f"{said}; this bundle is clearly worse than live in none of them."
    names = ", ".join(map(_name, worse[:_WORST]))
    more = f" and {len(worse) - _WORST:,} more" if len(worse) > _WORST else ""
    return f"{said}; this bundle is clearly worse than live in {len(worse):,}: {names}{more}."
