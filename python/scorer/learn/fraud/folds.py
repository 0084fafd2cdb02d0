"""The folds of tuning and of feature selection: windows before the test window, in processes that train."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread
from typing import Protocol

import numpy as np

from scorer.learn.errors import DataError
from scorer.learn.fraud.learners import fit_trees, sample_rows
from scorer.learn.fraud.settings import FraudSettings
from scorer.learn.fraud.table import FraudTable, read_table
from scorer.learn.fraud.task import ScoreTask
from scorer.learn.fraud.windows import TrainingWindows, unblocked
from scorer.stats.arrays import Floats
from scorer.stats.precision_recall import RankedScores


class FoldBudget(Protocol):
    """What the folds need of `[fraud.tune]` and `[fraud.select]`."""

    @property
    def rows(self) -> int:
        """Most training rows of a fold."""

    @property
    def workers(self) -> int:
        """Processes that train at the same time."""


class Fold:
    """The rows of a fold: a sample of its training window, and those that evaluate a model.

    Args:
        table: All rows.
        windows: The windows of the fold.
        settings: `[fraud]`.
        rows: Most training rows: all positive ones and a weighted sample of the others.

    Raises:
        DataError: A window has rows of one class only.
    """

    def __init__(
        self, table: FraudTable, windows: TrainingWindows, settings: FraudSettings, rows: int
    ) -> None:
        own = windows.train.positions(table.time_ms)
        known = np.arange(own.start, own.stop)
        known = known[table.take(known).known_by(windows.test.start_ms, settings.delay_days)]
        known, factor = sample_rows(table, known, rows, settings.seed)
        part = table.take(known)
        self.train = replace(part, weight=part.weight * factor)
        self.judged = table.take(unblocked(table, windows.test, settings))
        named = (("training", self.train, windows.train), ("validation", self.judged, windows.test))
        for name, one, span in named:
            if not 0 < int(one.label.sum()) < len(one):
                raise DataError(
                    f"the {name} window of a fold ({span}) has {len(one):,} rows and "
                    f"{int(one.label.sum()):,} positive labels; both classes are needed, "
                    "set the number of folds or give a longer period"
                )

    def scores(self, settings: FraudSettings, features: Sequence[str] | None = None) -> Floats:
        """Train the first algorithm and return the scores `[n]` of the rows that evaluate it.

        Args:
            settings: Settings of the trees.
            features: Names of the features that are used; None: all. Without any, all scores are equal.
        """
        if features is not None and not features:
            return np.full(len(self.judged), 0.5)
        train, judged = self.train, self.judged
        if features is not None:
            train, judged = train.only(features), judged.only(features)
            settings = settings.only(features)
        fitted = fit_trees(settings.algorithms[0], train, np.arange(len(train)), settings)
        return fitted.predict(judged.rows)

    def value(self, settings: FraudSettings, features: Sequence[str] | None = None) -> float:
        """Return the average precision of the scores of `scores`."""
        ranked = RankedScores(self.scores(settings, features), self.judged.label)
        return ranked.average_precision(self.judged.weight)


@contextmanager
def fold_pool(
    data: Path,
    task: ScoreTask,
    settings: FraudSettings,
    folds: list[TrainingWindows],
    budget: FoldBudget,
) -> Iterator[ProcessPoolExecutor]:
    """Start the workers, each with the folds of the data in memory.

    Args:
        data: The Parquet file.
        task: Features of the checkpoint.
        settings: `[fraud]`.
        folds: Windows of the folds.
        budget: Number of workers and of rows.
    """
    # Libraries with threads must not be forked.
    with ProcessPoolExecutor(
        budget.workers,
        mp_context=get_context("spawn"),
        initializer=_begin,
        initargs=(data, task, settings, folds, budget.rows),
    ) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_folds: list[Fold] = []
"""The folds of this worker process."""


def _begin(
    data: Path, task: ScoreTask, settings: FraudSettings, folds: list[TrainingWindows], rows: int
) -> None:
    Thread(target=_end_with_parent, daemon=True).start()
    table = read_table(data, task.features, settings.columns)
    _folds[:] = [Fold(table, fold, settings, rows) for fold in folds]


def _end_with_parent() -> None:
    """End this worker when its parent ends, which cannot stop its workers if it is killed."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def fold_value(fold: int, settings: FraudSettings, features: Sequence[str] | None = None) -> float:
    """Return the average precision on a fold of this worker process; see `Fold.value`."""
    return _folds[fold].value(settings, features)


def fold_scores(fold: int, settings: FraudSettings, features: Sequence[str] | None = None) -> Floats:
    """Return the scores on a fold of this worker process; see `Fold.scores`."""
    return _folds[fold].scores(settings, features)
