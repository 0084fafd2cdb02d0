"""Metrics of the differences between groups of requests, by fairlearn's definitions.

A request counts as selected if the bundle does not approve it. The groups are the levels of the features that
the settings name (`segments.groups`). Each metric is the worst of all named features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scorer.release.gates import tail
from scorer.release.gates.evidence import Bools, Observed, ShadowEvidence, outcome_of
from scorer.release.gates.measured import Measured, nothing
from scorer.release.model import GateSpec
from scorer.release.segments.settings import SegmentPlan
from scorer.release.segments.split import MISSING
from scorer.stats import groups

_OF_CLASS: Final = 30
"""Fewest rows of a class (fraud, or not) of a group whose rate is compared."""
_NAMED: Final = 5
ADVICE: Final = (
    GateSpec("group_selection_difference", "<= 10% upper95"),
    GateSpec("group_odds_difference", "<= 10% upper95", when="labels_matured >= 0.8"),
)
"""The gates of a checkpoint whose settings name groups and no gate of them."""


@dataclass(frozen=True, slots=True)
class _Division:
    """The groups of one feature that are large enough."""

    feature: str
    levels: tuple[str, ...]
    counts: tuple[tuple[int, int], ...]
    left_out: tuple[str, ...]

    @property
    def ends(self) -> tuple[int, int]:
        """Places of the groups with the smallest and the largest share."""
        shares = [hits / rows for hits, rows in self.counts]
        return int(np.argmin(shares)), int(np.argmax(shares))

    def named(self, at: int) -> str:
        hits, rows = self.counts[at]
        return f"{self.levels[at]} {100 * hits / rows:.2f} % of {rows:,}"


def gates_of(plan: SegmentPlan, specs: Sequence[GateSpec]) -> list[GateSpec]:
    """Return the gates of groups where the settings name groups, and no gate of the list is about them."""
    if not plan.groups or any(spec.metric in METRICS for spec in specs):
        return []
    return [
        GateSpec(spec.metric, spec.success, when=spec.when, dry_run=not plan.groups_decide) for spec in ADVICE
    ]


def _measure(rates: Sequence[str], *, is_ratio: bool) -> Callable[[ShadowEvidence, str, bool], Measured]:
    """Return a metric: the largest difference, or the smallest ratio, of some rates between groups.

    Args:
        rates: Any of `selection`, `tpr` and `fpr`.
        is_ratio: Whether ratios are compared and not differences.
    """

    def measured(evidence: ShadowEvidence, _against: str, _minus: bool) -> Measured:
        if not evidence.segments.groups:
            return nothing("the settings name no groups; add segments.groups")
        rows = evidence.shadow
        rows = rows.take(rows.scored)
        if evidence.approve not in rows.labels():
            return nothing(f'no decision is called "{evidence.approve}"', len(rows))
        if "selection" not in rates:
            rows = rows.take(rows.at < evidence.matured_before)
            if not len(rows):
                return nothing("no observation's outcome has matured")
        selected = np.asarray(rows.label != rows.labels().index(evidence.approve))
        live = tail.flagged(evidence, rows)
        found: list[_Division] = []
        others: list[_Division] = []
        for rate in rates:
            for feature in evidence.segments.groups:
                found += _division(evidence, rows, rate, feature, selected)
                others += _division(evidence, rows, rate, feature, live)
        counts = [one.counts for one in found if len(one.counts) > 1]
        if not counts:
            return nothing(_few(evidence, rates), len(rows))
        value = groups.ratio(counts) if is_ratio else groups.difference(counts)
        beside = [one.counts for one in others if len(one.counts) > 1]
        return Measured(
            value,
            len(rows),
            bounds=lambda confidence: (
                groups.ratio_bounds(counts, confidence)
                if is_ratio
                else groups.difference_bounds(counts, confidence)
            ),
            remark=_remark(found, groups.ratio(beside) if is_ratio else groups.difference(beside), is_ratio),
        )

    return measured


def _division(
    evidence: ShadowEvidence, rows: Observed, rate: str, feature: str, selected: Bools
) -> list[_Division]:
    """Return the groups of a feature; none if rows are not split by it."""
    if feature not in rows.segment_features:
        return []
    kept = np.ones(len(rows), dtype=bool)
    least = evidence.segments.rows
    if rate != "selection":
        positive = outcome_of(evidence, rows) > 0.5
        kept = positive if rate == "tpr" else ~positive
        least = _OF_CLASS
    codes = rows.segments[kept, rows.segment_features.index(feature)]
    names = rows.segment_levels(feature)
    totals = np.bincount(codes, minlength=len(names))
    hits = np.bincount(codes, weights=selected[kept], minlength=len(names)).astype(np.int64)
    large = [at for at in range(len(names)) if totals[at] >= least]
    small = [names[at] or MISSING for at in range(len(names)) if 0 < totals[at] < least]
    return [
        _Division(
            feature,
            tuple(names[at] or MISSING for at in large),
            tuple((int(hits[at]), int(totals[at])) for at in large),
            tuple(small),
        )
    ]


def _few(evidence: ShadowEvidence, rates: Sequence[str]) -> str:
    least = (
        f"{evidence.segments.rows:,} rows"
        if "selection" in rates
        else f"{_OF_CLASS} rows of a class ({evidence.outcome}, or not)"
    )
    return f"no named feature ({', '.join(evidence.segments.groups)}) has two groups with {least}"


def _remark(found: Sequence[_Division], live: float, is_ratio: bool) -> str:
    def spread(one: _Division) -> float:
        return groups.ratio([one.counts]) if is_ratio else -groups.difference([one.counts])

    worst = min((one for one in found if len(one.counts) > 1), key=spread)
    low, high = worst.ends
    parts = [
        f"{worst.feature}: from {worst.named(low)} to {worst.named(high)}",
        f"live's value is {live:.3g}" if is_ratio else f"live's value is {100 * live:.2f} %",
    ]
    small = list(dict.fromkeys(f"{one.feature} {level}" for one in found for level in one.left_out))
    if small:
        more = f" and {len(small) - _NAMED} more" if len(small) > _NAMED else ""
        parts.append(f"too few rows: {', '.join(small[:_NAMED])}{more}")
    return "; ".join(parts)


METRICS: Final[Mapping[str, Callable[[ShadowEvidence, str, bool], Measured]]] = {
    "group_selection_difference": _measure(("selection",), is_ratio=False),
    "group_selection_ratio": _measure(("selection",), is_ratio=True),
    "group_tpr_difference": _measure(("tpr",), is_ratio=False),
    "group_tpr_ratio": _measure(("tpr",), is_ratio=True),
    "group_fpr_difference": _measure(("fpr",), is_ratio=False),
    "group_fpr_ratio": _measure(("fpr",), is_ratio=True),
    "group_odds_difference": _measure(("tpr", "fpr"), is_ratio=False),
    "group_odds_ratio": _measure(("tpr", "fpr"), is_ratio=True),
}
