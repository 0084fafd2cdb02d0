"""Retraining every week compared with training once, on the same later weeks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scorer.learn.errors import DataError
from scorer.learn.fraud.checks import check_data
from scorer.learn.fraud.learners import FittedScore, fit_trees
from scorer.learn.fraud.measures import Measure, measure_of
from scorer.learn.fraud.settings import FraudSettings
from scorer.learn.fraud.table import DAY_MS, FraudTable
from scorer.learn.fraud.windows import TimeSpan, unblocked, window_before
from scorer.stats.blocks import Blocks
from scorer.stats.precision_recall import RankedScores


@dataclass(frozen=True, slots=True)
class WeekResult:
    """Average precision of both ways in one test window.

    Attributes:
        window: The test window.
        rows: Number of payments.
        positives: Number of frauds among them.
        once: Average precision of the model of the first window.
        retrained: That of the model that was trained for this window.
    """

    window: TimeSpan
    rows: int
    positives: int
    once: float
    retrained: float


@dataclass(frozen=True)
class Retraining:
    """All windows, and the mean difference of the average precision, with its paired interval.

    The first window is left out of the difference, because both models are the same there.
    """

    weeks: tuple[WeekResult, ...]
    difference: Measure


def compare_retraining(
    table: FraudTable,
    settings: FraudSettings,
    first_ms: int,
    *,
    at: Callable[[WeekResult], None] = lambda _: None,
) -> Retraining:
    """Train before each test window, and compare with the model of the first window.

    Windows of `test_days` follow each other without gaps. Each model is trained on the `train_days` that end
    `delay_days` before its window, with labels that were known when the window began.

    Args:
        table: The data.
        settings: `[fraud]`; the first algorithm is used.
        first_ms: Beginning of the first window.
        at: Called with the result of each window.

    Raises:
        DataError: The data is rejected, there are fewer than three whole windows, or a class is missing.
    """
    table, _ = check_data(table, settings.checks)
    length, delay = round(settings.test_days * DAY_MS), round(settings.delay_days * DAY_MS)
    end = (int(table.time_ms[-1]) // DAY_MS + 1) * DAY_MS
    starts = range(first_ms, end - length + 1, length)
    if len(starts) < 3:
        raise DataError(
            f"data: {len(starts)} whole windows of {settings.test_days:g} days begin with the first one; at "
            "least 3 are needed, choose an earlier first window"
        )
    once: FittedScore | None = None
    results = []
    for start in starts:
        window = TimeSpan(start, start + length)
        train = window_before(start - delay, int(table.time_ms[0]), settings)
        own = train.positions(table.time_ms)
        rows = np.arange(own.start, own.stop)
        rows = rows[table.take(rows).known_by(start, settings.delay_days)]
        judged = table.take(unblocked(table, window, settings))
        for name, label, span in (("training", table.label[rows], train), ("test", judged.label, window)):
            if not 0 < int(label.sum()) < len(label):
                raise DataError(
                    f"the {name} window ({span}) has {len(label):,} rows and {int(label.sum()):,} positive "
                    "labels; both classes are needed, choose a later first window"
                )
        fitted = fit_trees(settings.algorithms[0], table, rows, settings)
        once = once or fitted
        precisions = [
            RankedScores(one.predict(judged.rows), judged.label).average_precision(judged.weight)
            for one in (once, fitted)
        ]
        found = WeekResult(window, len(judged), int(judged.label.sum()), *precisions)
        results.append(found)
        at(found)
    differences = np.array([one.retrained - one.once for one in results[1:]])
    blocks = Blocks.of_groups(np.arange(len(differences)), seed=settings.seed)
    difference = measure_of(blocks.ratio(differences, np.ones(len(differences))), settings.confidence)
    return Retraining(tuple(results), difference)
