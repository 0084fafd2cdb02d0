"""Metrics of one version on some decisions, with the replicates of the bootstrap by day.

Two versions on the same decisions have the same draws, so that their metrics can be subtracted in pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from scorer.learn.comparison.rows import ComparedRows
from scorer.learn.comparison.settings import ComparisonSettings, Cost
from scorer.stats.arrays import Bools, Floats
from scorer.stats.blocks import FEW_DRAWS, Blocks, Draws
from scorer.stats.means import effective_sample_size
from scorer.stats.ranking import Precision, among_highest_weight

SCORE_METRICS: Final = (
    "average_precision",
    "auc",
    "calibration_error",
    "recall",
    "precision",
    "recall_at_live_rate",
    "value",
)
ACTION_METRICS: Final = ("reward", "value", "effective_share")
LOWER_IS_BETTER: Final = frozenset({"calibration_error"})
NOT_RANKED: Final = frozenset({"effective_share"})
"""Metrics that describe an estimate, so that no version is better by them."""
_BINS: Final = 10
_PER: Final = 1_000.0


@dataclass(frozen=True)
class MeasuredPart:
    """The decisions that a metric is computed on.

    Attributes:
        rows: The decisions.
        blocks: Their blocks of time, and the draws of these.
        settings: Limits and the cost matrix.
    """

    rows: ComparedRows
    blocks: Blocks
    settings: ComparisonSettings

    @classmethod
    def of(cls, rows: ComparedRows, settings: ComparisonSettings) -> MeasuredPart:
        """Return a part with its draws."""
        return cls(rows, Blocks(rows.time_us), settings)


Share = Callable[[float], None]
"""Receives the share of the work that is done."""


def score_draws(
    part: MeasuredPart, version: int, *, served: bool, advance: Share = lambda _share: None
) -> tuple[dict[str, Draws], str]:
    """Return the metrics of a score version, and why some are missing.

    Args:
        part: Decisions that the version has a score for.
        version: Its position.
        served: Whether the recorded decisions count, with rules and fallbacks, or else the version's
            thresholds.
        advance: Called after each replicate of the metrics that rank all rows, which take most of the time.
    """
    rows, blocks = part.rows, part.blocks
    score, weight, label = rows.values[version], rows.weight, rows.outcome > 0.5
    flagged = rows.stopped if served else rows.flags[version]
    weighed, positive = flagged * weight, label * weight
    found: dict[str, Draws] = {}
    reason, positives = "", int(label.sum())
    if positives < part.settings.positives or positives == len(rows):
        what = "no positive label" if not positives else f"{positives:,} positive labels"
        reason = f"{what} of {len(rows):,}; {part.settings.positives:,} of both classes are needed"
    else:
        ranked = Precision(score, label)
        ranking = {"average_precision": ranked.average, "auc": ranked.area}
        # Of each metric, the value over all rows and its replicates.
        done, whole = 0, len(ranking) * (1 + FEW_DRAWS)
        for name, measure in ranking.items():

            def statistic(drawn: Floats, measure: Callable[[Floats], float] = measure) -> float:
                nonlocal done
                value = measure(drawn * weight)
                done += 1
                advance(done / whole)
                return value

            found[name] = blocks.draws(statistic)
        found["recall"] = blocks.ratio_draws(weighed * label, positive)
        rate = float((rows.stopped * weight).sum())
        if not served and rate > 0:
            highest = among_highest_weight(score, weight, rate)
            found["recall_at_live_rate"] = blocks.ratio_draws(highest * positive, positive)
    if weighed.sum() > 0:
        found["precision"] = blocks.ratio_draws(weighed * label, weighed)
    if len(rows) and float(score.min()) >= 0 and float(score.max()) <= 1:
        found["calibration_error"] = _calibration_error(blocks, score, label, weight)
    gain = _saved(rows.amount, label, flagged, part.settings)
    if gain is not None:
        found["value"] = blocks.ratio_draws(_PER * gain * weight, weight)
    return found, reason


def action_draws(part: MeasuredPart, version: int, *, served: bool) -> tuple[dict[str, Draws], str]:
    """Return the metrics of an action version; see `score_draws`.

    On what a version served, the reward is the share of rewarded decisions. On other decisions it is the
    doubly robust estimate.
    """
    rows, blocks = part.rows, part.blocks
    reward = rows.outcome if served else rows.values[version]
    found = {"reward": blocks.ratio_draws(reward * rows.weight, rows.weight)}
    money = _money(part.settings.costs.reward, rows.amount)
    if money is not None:
        found["value"] = blocks.ratio_draws(_PER * money * reward * rows.weight, rows.weight)
    if not served:
        ratio = rows.ratios[version]
        share = effective_sample_size(ratio) / max(len(rows), 1)
        found["effective_share"] = Draws(share, np.full(1, math.nan), blocks.count)
    return found, ""


def draws_of(
    kind: str, part: MeasuredPart, version: int, *, served: bool, advance: Share
) -> tuple[Mapping[str, Draws], str]:
    """Return the metrics of a version of a kind of bundle, and why some are missing; see `score_draws`."""
    if kind == "score":
        return score_draws(part, version, served=served, advance=advance)
    return action_draws(part, version, served=served)


def is_better(metric: str, one: float, other: float) -> bool:
    """Return whether the first of two values of a metric is better."""
    return one < other if metric in LOWER_IS_BETTER else one > other


def _calibration_error(blocks: Blocks, score: Floats, label: Bools, weight: Floats) -> Draws:
    """Return the mean distance of mean score and rate of positives over ten bins with equal counts."""
    edges = np.unique(np.quantile(score, np.linspace(0, 1, _BINS + 1)[1:-1]))
    bins = np.searchsorted(edges, score, side="right")
    code, size = blocks.code * _BINS + bins, blocks.count * _BINS
    sums = np.stack(
        [
            np.bincount(code, values, minlength=size).astype(np.float64).reshape(blocks.count, _BINS)
            for values in (weight, weight * (score - label))
        ],
        axis=1,
    ).reshape(blocks.count, 2 * _BINS)

    def error(total: Floats) -> float:
        whole = float(total[:_BINS].sum())
        return float(np.abs(total[_BINS:]).sum()) / whole if whole > 0 else math.nan

    return blocks.sum_draws(sums, error)


def _saved(amount: Floats, label: Bools, flagged: Bools, settings: ComparisonSettings) -> Floats | None:
    """Return what each decision saves against letting the payment through, `[n]`."""
    costs = settings.costs
    parts = [_money(one, amount) for one in (costs.missed, costs.stopped, costs.refused, costs.passed)]
    if any(one is None for one in parts):
        return None
    missed, stopped, refused, passed = (np.asarray(one, np.float64) for one in parts)
    return np.where(flagged, np.where(label, missed - stopped, passed - refused), 0.0)


def _money(cost: Cost, amount: Floats) -> Floats | None:
    """Return the money of each decision, `[n]`; None if amounts are needed and missing."""
    if cost.share == 0:
        return np.full(len(amount), cost.fixed)
    if not len(amount) or not np.isfinite(amount).any():
        return None
    return np.asarray(cost.fixed + cost.share * np.nan_to_num(amount))
