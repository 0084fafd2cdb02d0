"""Retraining every week compared with training once, on the same later weeks.

The model that is trained once has what a project has at its beginning: a first training window of a length of
its own. Those that are trained every week use all days until then, or a rolling window (`train_days`).
"""

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
from scorer.stats.arrays import Bools
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

    If both models of the first window are the same, it is left out of the difference.
    """

    weeks: tuple[WeekResult, ...]
    difference: Measure


def compare_retraining(
    table: FraudTable,
    settings: FraudSettings,
    first_ms: int,
    *,
    once_days: float = 0.0,
    models: dict[int, FittedScore] | None = None,
    at: Callable[[WeekResult], None] = lambda _: None,
) -> Retraining:
    """Train before each test window, and compare with the model of the first window.

    Windows of `test_days` follow each other without gaps. Each model is trained on the `train_days` that end
    `delay_days` before its window, with labels that were known when the window began. Both models of the
    first window are the same if `once_days` is 0, else that window is a part of the difference.

    Args:
        table: The data.
        settings: `[fraud]`; the first algorithm is used.
        first_ms: Beginning of the first window.
        once_days: Length of the training window of the model that is trained once; 0: `train_days`.
        models: Models that are trained every week, by the beginning of their window. Missing ones are trained
            and added, so comparisons with the same settings and other first windows can share them.
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
    models = {} if models is None else models
    results = []
    for start in starts:
        window = TimeSpan(start, start + length)
        judged = table.take(unblocked(table, window, settings))
        if not 0 < int(judged.label.sum()) < len(judged):
            raise _one_class("test", judged.label, window)
        if start not in models:
            models[start] = _train(table, start, delay, settings)
        fitted = models[start]
        if once is None:
            first = settings.model_copy(update={"train_days": once_days})
            once = _train(table, start, delay, first) if once_days else fitted
        precisions = [
            RankedScores(one.predict(judged.rows), judged.label).average_precision(judged.weight)
            for one in (once, fitted)
        ]
        found = WeekResult(window, len(judged), int(judged.label.sum()), *precisions)
        results.append(found)
        at(found)
    own = results if once_days else results[1:]
    differences = np.array([one.retrained - one.once for one in own])
    blocks = Blocks.of_groups(np.arange(len(differences)), seed=settings.seed)
    difference = measure_of(blocks.ratio(differences, np.ones(len(differences))), settings.confidence)
    return Retraining(tuple(results), difference)


def _train(table: FraudTable, start_ms: int, delay: int, settings: FraudSettings) -> FittedScore:
    """Train on the window before a test window, with labels that were known when that one began."""
    train = window_before(start_ms - delay, int(table.time_ms[0]), settings)
    own = train.positions(table.time_ms)
    rows = np.arange(own.start, own.stop)
    rows = rows[table.take(rows).known_by(start_ms, settings.delay_days)]
    label = table.label[rows]
    if not 0 < int(label.sum()) < len(label):
        raise _one_class("training", label, train)
    return fit_trees(settings.algorithms[0], table, rows, settings)


def _one_class(name: str, label: Bools, span: TimeSpan) -> DataError:
    return DataError(
        f"the {name} window ({span}) has {len(label):,} rows and {int(label.sum()):,} positive labels; both "
        "classes are needed, choose a later first window"
    )
