"""Measures of scores on a window of labelled payments, with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from scorer.learn.errors import DataError
from scorer.learn.fraud.settings import FraudSettings
from scorer.learn.fraud.table import FraudTable
from scorer.learn.fraud.value import Thresholds, gains
from scorer.stats.arrays import Bools, Floats, Ints
from scorer.stats.blocks import Blocks, Replicated
from scorer.stats.precision_recall import RankedScores

TOP: Final = 100
"""Cards per day of the card precision."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure with its interval; bounds are None if they are not known."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Measures:
    """Measures of one model on one window.

    Attributes:
        auc: Area under the ROC curve.
        average_precision: Average precision.
        card_precision: Share of compromised cards among the 100 most suspicious ones of each day, averaged
            over the days; None without entities.
        value: Gain over approving every payment, per payment, in the currency of the amounts.
        value_share: The same as a share of the turnover.
        calibration: Mean score over the share of positive labels.
        rows: Number of payments.
        positives: Number of frauds among them.
    """

    auc: Measure
    average_precision: Measure
    card_precision: Measure | None
    value: Measure
    value_share: Measure
    calibration: float
    rows: int
    positives: int

    def as_dict(self) -> dict[str, Any]:
        """Return the measures as JSON, for the lineage."""
        return asdict(self)


@dataclass(frozen=True)
class Differences:
    """Measures of one model minus those of another on the same payments, each with a paired interval."""

    auc: Measure
    average_precision: Measure
    card_precision: Measure | None
    value: Measure
    value_share: Measure

    def as_dict(self) -> dict[str, Any]:
        """Return the differences as JSON, for the lineage."""
        return asdict(self)


class Judge:
    """Measures models on one window; the same draws of the bootstrap are used for all of them.

    Args:
        table: The payments of the window, in order of time.
        settings: Costs, capacity and the bootstrap.

    Raises:
        DataError: Only one class is present.
    """

    def __init__(self, table: FraudTable, settings: FraudSettings) -> None:
        positives = int(table.label.sum())
        if not 0 < positives < len(table):
            raise DataError(
                f"the window has {len(table):,} rows and {positives:,} positive labels; both classes are "
                "needed, choose another window"
            )
        self.table, self._settings = table, settings
        if settings.bootstrap == "entity" and table.entity is not None:
            self._blocks = Blocks.of_groups(table.entity, seed=settings.seed)
        else:
            self._blocks = Blocks(table.time_ms * 1000, seed=settings.seed)
        self._gains = gains(table.label, table.amount, settings.value)

    def measures(self, scores: Floats, thresholds: Thresholds) -> Measures:
        """Return the measures of a model.

        Args:
            scores: `[n]` calibrated scores.
            thresholds: Its thresholds.
        """
        table, ranked = self.table, self._ranked(scores)
        gained = self._gains.of(scores, thresholds)
        return Measures(
            auc=self._measure(self._blocks.of(lambda w: ranked.auc(w * table.weight))),
            average_precision=self._measure(
                self._blocks.of(lambda w: ranked.average_precision(w * table.weight))
            ),
            card_precision=self._of_days(self._cards(scores)),
            value=self._measure(self._blocks.ratio(gained * table.weight, table.weight)),
            value_share=self._measure(self._blocks.ratio(gained * table.weight, table.amount * table.weight)),
            calibration=float((scores * table.weight).sum() / table.weight[table.label].sum()),
            rows=len(table),
            positives=int(table.label.sum()),
        )

    def differences(self, one: tuple[Floats, Thresholds], other: tuple[Floats, Thresholds]) -> Differences:
        """Return the measures of one model minus those of another.

        Args:
            one: Scores `[n]` and thresholds of the first model.
            other: Those of the second one.
        """
        table = self.table
        first, second = self._ranked(one[0]), self._ranked(other[0])

        def paired(measure: Callable[[RankedScores, Floats], float]) -> Measure:
            return self._measure(
                self._blocks.of(
                    lambda w: measure(first, w * table.weight) - measure(second, w * table.weight)
                )
            )

        gained = (self._gains.of(*one) - self._gains.of(*other)) * table.weight
        mine, theirs = self._cards(one[0]), self._cards(other[0])
        return Differences(
            auc=paired(RankedScores.auc),
            average_precision=paired(RankedScores.average_precision),
            card_precision=None if mine is None or theirs is None else self._of_days(mine - theirs),
            value=self._measure(self._blocks.ratio(gained, table.weight)),
            value_share=self._measure(self._blocks.ratio(gained, table.amount * table.weight)),
        )

    def gain_between(
        self,
        one: tuple[Floats, Thresholds],
        other: tuple[Floats, Thresholds],
        mask: Bools,
        confidence: float,
    ) -> Measure:
        """Return the gain of one model over another in a part of the payments, as a share of their turnover.

        Args:
            one: Scores `[n]` and thresholds of the first model.
            other: Those of the second one.
            mask: `[n]` the part.
            confidence: One-sided confidence of each bound.
        """
        weight = self.table.weight * mask
        gained = (self._gains.of(*one) - self._gains.of(*other)) * weight
        return measure_of(self._blocks.ratio(gained, self.table.amount * weight), confidence)

    def _ranked(self, scores: Floats) -> RankedScores:
        return RankedScores(scores, self.table.label)

    def _measure(self, found: Replicated) -> Measure:
        return measure_of(found, self._settings.confidence)

    def _cards(self, scores: Floats) -> Floats | None:
        table = self.table
        if table.entity is None:
            return None
        return card_precision_by_day(scores, table.label, table.entity, self._day)

    @cached_property
    def _day(self) -> Ints:
        return self.table.day

    def _of_days(self, precisions: Floats | None) -> Measure | None:
        if precisions is None:
            return None
        days = Blocks.of_groups(np.arange(len(precisions)), seed=self._settings.seed)
        return self._measure(days.ratio(precisions, np.ones(len(precisions))))


def measure_of(found: Replicated, confidence: float) -> Measure:
    """Return a value with its bounds, each with this one-sided confidence."""
    low, high = found.bounds(confidence)
    return Measure(found.value, low if math.isfinite(low) else None, high if math.isfinite(high) else None)


def card_precision_by_day(scores: Floats, label: Bools, entity: Ints, day: Ints, top: int = TOP) -> Floats:
    """Return for each day the share of compromised cards among the `top` cards with the highest scores.

    Args:
        scores: `[n]`; a card has its highest score of the day.
        label: `[n]` True for fraud; a card with one on the day is compromised.
        entity: `[n]` cards or customers.
        day: `[n]` days.
        top: Number of cards.

    Returns:
        `[days]`, in the order of the days.
    """
    precisions = []
    for today in np.unique(day):
        rows = np.flatnonzero(day == today)
        cards, code = np.unique(entity[rows], return_inverse=True)
        highest = np.full(len(cards), -np.inf)
        np.maximum.at(highest, code, scores[rows])
        compromised = np.zeros(len(cards), dtype=bool)
        np.logical_or.at(compromised, code, label[rows])
        chosen = np.argsort(-highest, kind="stable")[:top]
        precisions.append(compromised[chosen].sum() / top)
    return np.array(precisions)
