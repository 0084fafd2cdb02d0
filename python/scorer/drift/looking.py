"""The looks of one lane: what has shifted, with its cause."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from scorer.drift import performance, shift, slices
from scorer.drift.detection import REFERENCE, WindowVerdict, cumulative, judge, judge_reference
from scorer.drift.quantities import LaneCounts, QuantityGroup, ScoreOutcomes
from scorer.drift.settings import WEEK, DetectionSettings
from scorer.stats.arrays import Bools, Floats, Ints
from scorer.stats.distributions import normal_quantile

_LEAST_AUC: Final = 0.02
_LEAST_POSITIVES: Final = 30
_REFERENCE_HOURS: Final = 4 * WEEK
_WORST: Final = 5


@dataclass(frozen=True)
class Finding:
    """The figures of one quantity at the latest look.

    Attributes:
        quantity: Kind and name, such as `feature:amount`.
        kind: Kind of the quantity.
        name: Name of the feature or segment; empty for others.
        hours: Length of the window; 0: the last week against the reference.
        judged: Whether there were enough rows and history.
        shifted: Whether k of m looks were shifted.
        rows: Rows of the window.
        psi: PSI of the window against its reference; None if it was not judged.
        kl: Kullback-Leibler divergence in nats.
        js: Jensen-Shannon divergence in nats.
        threshold: PSI from which on the quantity counts as shifted.
        before: Share of the part that changed most, or rate, in the reference.
        after: The same in the window.
        part: What this part is: a range, a category or a decision; empty for a rate.
    """

    quantity: str
    kind: str
    name: str
    hours: int
    judged: bool
    shifted: bool
    rows: int
    psi: float | None
    kl: float | None
    js: float | None
    threshold: float | None
    before: float | None
    after: float | None
    part: str = ""

    @property
    def cause(self) -> str:
        """One sentence with the direction of the change."""
        what = f"{self.kind.replace('_', ' ')} {self.name}".strip()
        window = "the last week" if self.hours == REFERENCE else f"the last {self.hours} h"
        if self.before is None or self.after is None:
            return f"{what}: there are no rows to compare in {window}"
        part = f"share of {self.part}" if self.part else "rate"
        before, after = f"{self.before:.2%}", f"{self.after:.2%}"
        if before == after:
            return f"{what}: {part} stayed at {after} in {window}"
        way = "rose" if self.after > self.before else "fell"
        return f"{what}: {part} {way} from {before} to {after} in {window}"


@dataclass(frozen=True)
class LanePerformance:
    """Performance of the newest bundle of a lane; None where it is not known.

    Attributes:
        bundle: Digest of the bundle.
        auc_reference: AUC of the first four matured weeks.
        auc_matured: AUC of the last matured week.
        auc_estimated: AUC of the last week before its outcomes, by the outcome rates of scores.
        rate_expected: Outcome rate that the scores of the last matured week give.
        rate_observed: Its observed outcome rate.
        rate_estimated: Outcome rate of the last week before its outcomes.
        precision_estimated: Estimated precision of the highest tenth of scores in the last week.
        recall_estimated: Estimated recall of the same.
        calibration_error: Mean difference of expected and observed rates over the bins of scores.
        shifted: Quantities that have shifted: `auc`, `calibration`.
    """

    bundle: str
    auc_reference: float | None = None
    auc_matured: float | None = None
    auc_estimated: float | None = None
    rate_expected: float | None = None
    rate_observed: float | None = None
    rate_estimated: float | None = None
    precision_estimated: float | None = None
    recall_estimated: float | None = None
    calibration_error: float | None = None
    shifted: tuple[str, ...] = ()


@dataclass(frozen=True)
class LaneLooks:
    """Consecutive looks of a lane.

    Attributes:
        hours: `[T]` hours since the Unix epoch.
        titles: Name of each quantity, `F`.
        shifted: `[T, F]` whether a quantity is shifted at a look.
        findings: Figures of the latest look.
        performance: Performance at the latest look; None without scores.
        slices: Segments that differ most from their past at the latest look.
    """

    hours: Ints
    titles: tuple[str, ...]
    shifted: Bools
    findings: tuple[Finding, ...]
    performance: LanePerformance | None
    slices: tuple[slices.SliceShift, ...] = field(default=())


def look(
    counts: LaneCounts,
    hours: Ints,
    settings: DetectionSettings,
    reference: LaneCounts | None,
) -> LaneLooks:
    """Judge all quantities of a lane at consecutive looks.

    Args:
        counts: Counts up to the last look.
        hours: `[T]` hours of the looks since the Unix epoch.
        settings: The settings of the detection.
        reference: Counts of the four weeks of the reference; None: they are not complete yet.
    """
    alpha = settings.alpha(counts.number)
    places = hours - counts.begin
    titles: list[str] = []
    shifted, findings = [], []
    for group in counts.groups:
        sums = cumulative(group.counts)
        verdicts = judge(sums, places, settings, alpha, rate=group.rate)
        base, begin = _reference_of(group, counts, reference)
        if base is not None:
            verdicts.append(
                judge_reference(sums, places, base, settings, alpha, begin=begin, rate=group.rate)
            )
        any_shifted = np.any([one.shifted for one in verdicts], axis=0)
        shifted.append(any_shifted)
        titles += [group.title(at) for at in range(len(group.names))]
        findings += [
            _finding(group, at, verdicts, bool(any_shifted[-1, at]), sums, int(places[-1]), base, settings)
            for at in range(len(group.names))
        ]
    found = None
    if counts.scores is not None:
        found = _performance(counts.scores, int(places[-1]), settings, alpha)
        titles += ["auc", "calibration"]
        # Outcomes of one more hour change them little, so the verdict of the last look is that of all.
        shifted.append(np.tile([name in found.shifted for name in ("auc", "calibration")], (len(hours), 1)))
    return LaneLooks(
        hours,
        tuple(titles),
        np.hstack(shifted) if shifted else np.zeros((len(hours), 0), dtype=bool),
        tuple(findings),
        found,
        tuple(_worst(counts, int(places[-1]), settings, alpha)),
    )


def _reference_of(
    group: QuantityGroup, counts: LaneCounts, reference: LaneCounts | None
) -> tuple[Floats | None, int]:
    """Return the counts that the last week is compared with, and the hour at which it may begin."""
    if group.reference is not None:
        return group.reference, 0
    if reference is None:
        return None, 0
    for other in reference.groups:
        if other.kind != group.kind:
            continue
        place = {name: at for at, name in enumerate(other.names)}
        whole = other.counts.sum(axis=0)
        found = np.zeros(group.counts.shape[1:])
        for at, name in enumerate(group.names):
            if name in place:
                found[at] = whole[place[name]]
        return found, max(reference.begin + _REFERENCE_HOURS - counts.begin, 0)
    return None, 0


def _finding(
    group: QuantityGroup,
    at: int,
    verdicts: Sequence[WindowVerdict],
    is_shifted: bool,
    sums: Floats,
    end: int,
    base: Floats | None,
    settings: DetectionSettings,
) -> Finding:
    """Return the figures of the comparison in which the PSI is largest relative to its threshold."""
    judged = [one for one in verdicts if one.judged[-1, at]]
    own = max(
        judged or verdicts,
        key=lambda one: (
            one.shifted[-1, at],
            one.figures.psi[-1, at] / max(one.threshold[-1, at], 1e-12) if one.judged[-1, at] else 0.0,
        ),
    )
    hours = own.hours or WEEK
    window = _between(sums, end - hours, end)[at]
    if own.hours == REFERENCE:
        reference = base[at] if base is not None else np.zeros_like(window)
    else:
        weeks = range(1, settings.weeks + 1)
        reference = np.sum(
            [_between(sums, end - WEEK * one - hours, end - WEEK * one)[at] for one in weeks], axis=0
        )
    pair = shift.pooled(reference, window, least=0.0 if group.rate is not None else shift.LEAST_EXPECTED)
    known = bool(judged)
    before = after = None
    part = ""
    if window.sum() and reference.sum():
        shares = reference / reference.sum(), window / window.sum()
        code = 0 if group.rate is not None else int(np.argmax(np.abs(shares[1] - shares[0])))
        before, after = float(shares[0][code]), float(shares[1][code])
        part = "" if group.rate is not None else group.label(at, code)
    return Finding(
        quantity=group.title(at),
        kind=group.kind,
        name=group.names[at],
        hours=own.hours,
        judged=known,
        shifted=is_shifted,
        rows=int(window.sum()),
        psi=float(own.figures.psi[-1, at]) if known else None,
        kl=float(shift.kl(pair)) if known else None,
        js=float(shift.js(pair)) if known else None,
        threshold=float(own.threshold[-1, at]) if known else None,
        before=before,
        after=after,
        part=part,
    )


def _performance(
    scores: ScoreOutcomes, end: int, settings: DetectionSettings, alpha: float
) -> LanePerformance:
    """Compare the last matured week with the first four of the bundle, and estimate the rest."""
    matured = end - scores.matures
    there = np.flatnonzero(scores.rows.any(axis=1))
    begin = int(there[0]) if len(there) else 0
    first_end = min(begin + _REFERENCE_HOURS, matured - WEEK)
    if first_end <= begin:
        return LanePerformance(scores.bundle)
    rows, hits = (part[begin:first_end].sum(axis=0) for part in (scores.rows, scores.positives))
    if hits.sum() < _LEAST_POSITIVES or (rows - hits).sum() < _LEAST_POSITIVES:
        return LanePerformance(scores.bundle)
    rates = performance.outcome_rates(rows, hits)
    before = performance.auc(hits, rows - hits)
    weeks = slice(max(matured - WEEK, 0), matured)
    own, positive = scores.rows[weeks].sum(axis=0), scores.positives[weeks].sum(axis=0)
    now = performance.auc(positive, own - positive)
    estimated = performance.estimate(rates, scores.rows[max(end - WEEK, 0) : end].sum(axis=0), scores.flagged)
    # The rates themselves are estimated from `rows`, which adds their variance.
    spread = 1 + float(own.sum()) / max(float(rows.sum()), 1.0)
    fit = performance.calibration(rates, own, positive, spread)
    shifted = []
    enough = positive.sum() >= _LEAST_POSITIVES
    if enough and math.isfinite(now.value):
        least = -normal_quantile(alpha / 2) * math.hypot(now.error, before.error)
        if before.value - now.value >= max(least, _LEAST_AUC):
            shifted.append("auc")
    change = abs(fit.observed - fit.expected)
    if own.sum() >= settings.least_rows and change >= settings.least_ratio * fit.expected:
        shifted += ["calibration"] if fit.chance < alpha else []
    total = float(own.sum())
    return LanePerformance(
        scores.bundle,
        auc_reference=_finite(before.value),
        auc_matured=_finite(now.value),
        auc_estimated=_finite(estimated.auc),
        rate_expected=fit.expected / total if total else None,
        rate_observed=fit.observed / total if total else None,
        rate_estimated=_finite(estimated.positive_rate),
        precision_estimated=_finite(estimated.precision),
        recall_estimated=_finite(estimated.recall),
        calibration_error=_finite(fit.error),
        shifted=tuple(shifted),
    )


def _worst(
    counts: LaneCounts, end: int, settings: DetectionSettings, alpha: float
) -> list[slices.SliceShift]:
    """Return the segments with the largest excess of outcomes, or else of high scores, in the last day."""
    groups = {group.kind: group for group in counts.groups}
    for kind in ("segment_outcome", "segment_score"):
        if kind not in groups:
            continue
        group = groups[kind]
        sums = cumulative(group.counts)
        weeks = range(1, settings.weeks + 1)
        reference = np.sum([_between(sums, end - WEEK * one - 24, end - WEEK * one) for one in weeks], axis=0)
        found = slices.scan(
            group.names,
            _between(sums, end - 24, end),
            reference,
            alpha=alpha,
            least_rows=settings.least_rows,
        )
        if found:
            return found[:_WORST]
    return []


def as_document(found: LaneLooks) -> dict[str, Any]:
    """Return the latest look as JSON."""
    return {
        "hour": int(found.hours[-1]),
        "findings": [asdict(one) | {"cause": one.cause} for one in found.findings],
        "performance": None if found.performance is None else asdict(found.performance),
        "slices": [asdict(one) for one in found.slices],
    }


def _between(sums: Floats, begin: int, end: int) -> Floats:
    if begin < 0 or end > len(sums) - 1:
        return np.zeros_like(sums[0])
    return np.asarray(sums[end] - sums[begin])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
