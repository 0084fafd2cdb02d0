"""The metrics: functions from evidence to a value with its bounds. docs/gates.md contains the formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from scorer.release.gates import counting, groups, tail
from scorer.release.gates.evidence import Floats, Ints, Observed, ShadowEvidence, outcome_of
from scorer.release.gates.measured import Measured, nothing
from scorer.stats import distances, proportions, roc
from scorer.stats.interval import Interval
from scorer.stats.means import effective_sample_size, student
from scorer.stats.quantiles import quantile, quantile_bounds

Metric = Callable[[ShadowEvidence, str, bool], Measured]
"""Function of the evidence, what it is compared with, and whether the A/A control is subtracted."""

_LEAST_OF_CLASS = 10
_WEEK = 168
_HOUR = 3_600_000_000
# 1970-01-01 was a Thursday.
_FIRST = 3 * 24
_NO_ROWS = "there is no observation yet"
_NO_PAIRS = "no observation has both a live score and this bundle's"
_NO_CONTROL = "no request was observed by the A/A control as well; add the lane aa"


def hours_of_week(at: Ints) -> Ints:
    """Return the hour of the week of each time, `[n]`. Hour 0 starts on Monday at 00:00 UTC.

    Args:
        at: Microseconds since the Unix epoch, `[n]`.
    """
    return np.asarray((at // _HOUR + _FIRST) % _WEEK)


def measure(name: str, evidence: ShadowEvidence, against: str, minus: bool) -> Measured:
    """Compute one metric over all of the evidence.

    Args:
        name: Name of the metric.
        evidence: The evidence.
        against: What the value is compared with; see `MetricForm.against`.
        minus: Whether the value of the A/A control is subtracted.
    """
    if name.startswith(("exec_p", "data_load_p")):
        return _time(name, evidence)
    return _METRICS[name](evidence, against, minus)


def quantity(name: str, evidence: ShadowEvidence) -> float:
    """Return the number that a gate's `when` compares."""
    rows = evidence.shadow
    if name == "labels_matured":
        return float((rows.at < evidence.matured_before).mean()) if len(rows) else 0.0
    if name == "control_rows":
        return float(len(evidence.control))
    if name in ("flagged_rows", "declined_rows"):
        return float(tail.count(name, evidence))
    if name == "covered_hours_of_week":
        return float(len(np.unique(hours_of_week(rows.at))))
    return float(len(rows))


def _time(name: str, evidence: ShadowEvidence) -> Measured:
    what, _, digits = name.removesuffix("_us").rpartition("_p")
    q = int(digits) / 10 ** len(digits)
    rows = evidence.shadow
    times = (rows.exec_us if what == "exec" else rows.load_us)[rows.error == 0]
    times = np.sort(times[np.isfinite(times)])
    if not len(times):
        return nothing(_NO_ROWS)
    return Measured(
        quantile(times, q),
        len(times),
        bounds=lambda confidence: quantile_bounds(times, q, confidence),
    )


def _error_rate(evidence: ShadowEvidence, _against: str, _minus: bool) -> Measured:
    rows = evidence.shadow
    last = {(one.server, one.lane): one for one in sorted(evidence.counters, key=lambda one: one.at)}
    stuck = sum(one.stuck for one in last.values())
    failed = int((~rows.scored).sum()) + stuck
    total = len(rows) + stuck
    if not total:
        return nothing(_NO_ROWS)
    kinds = _counts(rows, rows.error, "error")
    if unnamed := int(((rows.error == 0) & ~np.isfinite(rows.score)).sum()):
        kinds.append(f"{unnamed:,} non-finite")
    if stuck:
        kinds.append(f"stuck on {stuck} server{'s' if stuck > 1 else ''}")
    lost = sum(one.dropped + one.shed for one in last.values())
    remarks = [f"without a score: {', '.join(kinds)}" if kinds else "", f"{lost:,} dropped" if lost else ""]
    return Measured(
        failed / total,
        total,
        bounds=lambda confidence: proportions.wilson(failed, total, confidence),
        remark="; ".join(filter(None, remarks)),
    )


def _drop_rate(evidence: ShadowEvidence, _against: str, _minus: bool) -> Measured:
    if not evidence.counters:
        return nothing("the servers' counters are not known")
    found = counting.account(evidence.counters, counting.observations(evidence))
    if not found.taken:
        return nothing("no request was taken")
    remark = (
        f"{found.observed:,} observed, {found.dropped:,} dropped, {found.shed:,} shed and "
        f"{found.failed:,} failed"
    )
    return Measured(found.not_observed / found.taken, found.taken, remark=remark)


def _parity(evidence: ShadowEvidence, _against: str, _minus: bool) -> Measured:
    if evidence.parity is None or not evidence.parity[0]:
        return nothing("no logged row was computed again offline")
    rows, apart = evidence.parity
    return Measured(apart, rows)


def _feature_parity(evidence: ShadowEvidence, _against: str, _minus: bool) -> Measured:
    rows = evidence.shadow
    known = (rows.differs >= 0) | (rows.absent > 0)
    total, bad = int(known.sum()), int(((rows.differs > 0) | (rows.absent > 0)).sum())
    if not total:
        return nothing("no observation could be compared with the live features")
    absent = int((rows.absent > 0).sum())
    remark = f"{absent:,} rows lack a feature, {bad - absent:,} others differ" if bad else ""
    return Measured(
        (total - bad) / total,
        total,
        bounds=lambda confidence: proportions.wilson(total - bad, total, confidence),
        remark=remark,
    )


def _binned(evidence: ShadowEvidence, against: str) -> tuple[distances.BinnedPair | None, int, str]:
    rows = evidence.shadow
    if against == "reference":
        own = rows.score[rows.scored]
        if evidence.reference is None:
            return None, len(own), "the bundle brings no reference scores"
        if not len(own):
            return None, 0, _NO_ROWS
        return distances.by_reference(evidence.reference.counts, evidence.reference.edges, own), len(own), ""
    both = rows.comparable
    if not both.any():
        return None, 0, _NO_PAIRS
    return distances.by_samples(rows.live_score[both], rows.score[both]), int(both.sum()), ""


def _distance(of: Callable[[Floats, Floats], float]) -> Metric:
    def measured(evidence: ShadowEvidence, against: str, _minus: bool) -> Measured:
        binned, rows, why = _binned(evidence, against)
        if binned is None:
            return nothing(why, rows)
        return Measured(of(binned.second, binned.first), rows, chance=binned.null_psi)

    return measured


def _flip_rate(evidence: ShadowEvidence, _against: str, minus: bool) -> Measured:
    rows = evidence.shadow
    rows = rows.take(rows.comparable)
    if not len(rows):
        return nothing(_NO_PAIRS)
    if not minus:
        hits = int(rows.flipped.sum())
        return Measured(
            hits / len(rows),
            len(rows),
            bounds=lambda confidence: proportions.wilson(hits, len(rows), confidence),
        )
    own, control = together(rows, evidence.control)
    if not len(own):
        return nothing(_NO_CONTROL)
    return _paired(own.flipped, control.flipped, f"the A/A control flips {_percent(control.flipped.mean())}")


def _approve(evidence: ShadowEvidence, _against: str, _minus: bool) -> Measured:
    rows = evidence.shadow
    rows = rows.take(rows.comparable)
    if not len(rows):
        return nothing(_NO_PAIRS)
    names = rows.labels()
    if evidence.approve not in names:
        return nothing(f'no decision is called "{evidence.approve}"', len(rows))
    code = names.index(evidence.approve)
    own, live = rows.label == code, rows.live_label == code
    return _paired(own, live, f"live approves {_percent(live.mean())}, this bundle {_percent(own.mean())}")


def _auc(evidence: ShadowEvidence, against: str, _minus: bool) -> Measured:
    rows = evidence.shadow
    rows = rows.take(rows.comparable & (rows.at < evidence.matured_before))
    if not len(rows):
        return nothing("no observation's outcome has matured")
    labels = outcome_of(evidence, rows) > 0.5
    positive = int(labels.sum())
    if min(positive, len(rows) - positive) < _LEAST_OF_CLASS:
        return nothing(
            f"{positive} of {len(rows):,} matured rows are {evidence.outcome}; "
            f"{_LEAST_OF_CLASS} of each are needed",
            len(rows),
        )
    sides = [rows.score, rows.live_score] if against else [rows.score]
    areas, covariance = roc.auc(sides, labels)
    contrast = np.array([1.0, -1.0]) if against else np.array([1.0])
    error = math.sqrt(max(float(contrast @ covariance @ contrast), 0.0))
    remark = f"AUC {areas[0]:.4f}" + (f", live {areas[1]:.4f}" if against else "")
    return _normal(float(contrast @ areas), error, len(rows), remark)


def _covered(evidence: ShadowEvidence, _against: str, _minus: bool) -> Measured:
    rows = evidence.shadow
    return Measured(float(len(np.unique(hours_of_week(rows.at)))), len(rows))


def _policy_distance(evidence: ShadowEvidence, _against: str, minus: bool) -> Measured:
    rows = evidence.shadow
    rows = rows.take(rows.comparable & np.isfinite(rows.distance))
    if not len(rows):
        return nothing("no pmf of live was found beside this bundle's")
    if not minus:
        return _mean(rows.distance)
    own, control = together(rows, evidence.control)
    known = np.isfinite(control.distance)
    if not known.any():
        return nothing(_NO_CONTROL)
    return _mean((own.distance - control.distance)[known])


def _least(evidence: ShadowEvidence, _against: str, _minus: bool) -> Measured:
    least = evidence.shadow.least[np.isfinite(evidence.shadow.least)]
    return Measured(float(least.min()), len(least)) if len(least) else nothing(_NO_ROWS)


def _reward(evidence: ShadowEvidence, _against: str, _minus: bool) -> Measured:
    """Estimate the difference of rewards by inverse propensities, with the mean reward as control variate.

    Because E[w] = 1, the difference is E[(w - 1)(r - mean)].
    """
    rows = evidence.shadow
    known = rows.comparable & np.isfinite(rows.ratio) & (rows.at < evidence.matured_before)
    rows = rows.take(known)
    if len(rows) < 2:
        return nothing("no observation's outcome has matured")
    reward = outcome_of(evidence, rows)
    effective = effective_sample_size(rows.ratio)
    found = _mean((rows.ratio - 1) * (reward - reward.mean()), degrees=effective - 1)
    return Measured(
        found.value, found.rows, found.bounds, remark=f"{effective:,.0f} effective rows of {len(rows):,}"
    )


_METRICS: Final[Mapping[str, Metric]] = {
    "error_rate": _error_rate,
    "drop_rate": _drop_rate,
    "parity_max_abs": _parity,
    "feature_parity_rate": _feature_parity,
    "score_psi": _distance(distances.psi),
    "score_psi_live": _distance(distances.psi),
    "score_kl": _distance(distances.kl),
    "score_js": _distance(distances.js),
    "flip_rate": _flip_rate,
    "approve_rate_delta": _approve,
    **tail.METRICS,
    **groups.METRICS,
    "auc_matured": _auc,
    "covered_hours_of_week": _covered,
    "policy_distance": _policy_distance,
    "min_propensity": _least,
    "expected_reward_delta": _reward,
}


def together(rows: Observed, control: Observed) -> tuple[Observed, Observed]:
    """Return the rows of both lanes that are of the same decisions, in the same order."""
    control = control.take(control.comparable)
    if np.array_equal(rows.key, control.key):
        # The usual case: both lanes observe the same requests.
        return rows, control
    _, own, other = np.intersect1d(rows.key, control.key, assume_unique=True, return_indices=True)
    return rows.take(own), control.take(other)


def _paired(own: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_], remark: str) -> Measured:
    both = int((own & other).sum())
    first, second = int((own & ~other).sum()), int((~own & other).sum())
    neither = len(own) - both - first - second
    return Measured(
        (first - second) / len(own),
        len(own),
        bounds=lambda confidence: proportions.paired_difference(both, first, second, neither, confidence),
        remark=remark,
    )


def _mean(values: Floats, *, degrees: float | None = None) -> Measured:
    return Measured(
        float(values.mean()),
        len(values),
        bounds=lambda confidence: student(values, confidence=confidence, degrees=degrees),
    )


def _normal(value: float, error: float, rows: int, remark: str) -> Measured:
    def bounds(confidence: float) -> Interval:
        half = NormalDist().inv_cdf(confidence) * error
        return Interval(value - half, value + half)

    return Measured(value, rows, bounds, remark=remark)


def _counts(rows: Observed, codes: Ints, column: str) -> list[str]:
    names = rows.names.get(column, ())
    found, counts = np.unique(codes[codes > 0], return_counts=True)
    return [f"{count:,} {names[int(code)]}" for code, count in zip(found, counts, strict=True)]


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
