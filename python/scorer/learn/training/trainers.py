"""Trainers: where the rows are while a forest is trained on them.

Every other step of training calls a trainer with the decisions and their weights, and does not depend on the
place of the rows. `scorer.learn.training.running` selects the trainer by the settings.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xgboost

from scorer.learn.decisions import DecisionRows
from scorer.learn.oracle import OracleTask, xgboost_types
from scorer.learn.training.boosting import TreeProgress, boost, booster_settings, exploded, margins
from scorer.learn.training.settings import TrainSettings
from scorer.stats.arrays import Floats, Rows32

PAGE_BYTES = 8 << 20
"""Rows that are read, quantised and written as one page."""

Page = tuple[Rows32, Floats, Floats]
"""Features `[n, columns]`, rewards `[n]` and weights `[n]`."""
OnTree = Callable[[int, int], None]
"""Receives the number of trees that a training has, and will have."""


class Trainer(Protocol):
    """Trains forests and predicts with them."""

    def train(self, known: DecisionRows, weights: Floats, seed: int | None = None) -> xgboost.Booster:
        """Train with log loss on the actions taken.

        Args:
            known: `n` settled decisions.
            weights: `[n]`, above 0 and with mean 1.
            seed: in place of the plan's.
        """
        ...

    def margins(self, booster: xgboost.Booster, unseen: DecisionRows) -> Floats:
        """Return the log-odds of the actions taken, `[n]`."""
        ...


@dataclass(frozen=True)
class MemoryTrainer:
    """All rows are in memory, as float32 and as XGBoost's bins.

    Attributes:
        task: what the columns are.
        plan: trees and their shape.
        on_tree: receives the progress within a training.
    """

    task: OracleTask
    plan: TrainSettings
    on_tree: OnTree | None = None

    def train(self, known: DecisionRows, weights: Floats, seed: int | None = None) -> xgboost.Booster:
        """Train on rows in memory; see `Trainer.train`."""
        rows = self._rows(known)
        calls = callbacks(self.plan, self.on_tree)
        return boost(self.task, rows, known.reward, weights, self.plan, seed, callbacks=calls)

    def margins(self, booster: xgboost.Booster, unseen: DecisionRows) -> Floats:
        """Return the log-odds of the actions taken, `[n]`."""
        return margins(self.task, booster, self._rows(unseen))

    def _rows(self, decisions: DecisionRows) -> Any:
        parts = [exploded(self.task, block) for block in decisions.blocks(max(len(decisions), 1))]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(frozen=True)
class DiskTrainer:
    """XGBoost's external memory: rows become pages of bins on disk, of which a few are in memory at a time.

    Attributes:
        task: what the columns are.
        plan: trees and their shape.
        work: directory for the bins, which need 2 to 6 bytes for each value.
        on_tree: receives the progress within a training.
    """

    task: OracleTask
    plan: TrainSettings
    work: Path
    on_tree: OnTree | None = None

    def train(self, known: DecisionRows, weights: Floats, seed: int | None = None) -> xgboost.Booster:
        """Train on pages of the files; see `Trainer.train`."""
        with tempfile.TemporaryDirectory(prefix="pages-", dir=self.work) as folder:
            return train_pages(
                self.task,
                self.plan,
                seed,
                lambda: self._pages(known, weights),
                Path(folder),
                callbacks(self.plan, self.on_tree),
            )

    def margins(self, booster: xgboost.Booster, unseen: DecisionRows) -> Floats:
        """Return the log-odds of the actions taken, `[n]`."""
        parts = [
            margins(self.task, booster, exploded(self.task, block))
            for block in unseen.blocks(page_rows(self.task))
        ]
        return np.concatenate(parts) if parts else np.empty(0)

    def _pages(self, known: DecisionRows, weights: Floats) -> Iterator[Page]:
        start = 0
        for block in known.blocks(page_rows(self.task)):
            yield exploded(self.task, block), block.reward, weights[start : start + len(block)]
            start += len(block)


class PageSource(xgboost.DataIter):
    """Feeds XGBoost page by page. XGBoost passes over all pages several times.

    Args:
        task: what the columns are.
        pages: opens a pass: yields features `[n, columns]`, rewards and weights.
        cache: beginning of the paths of the files of bins.
    """

    def __init__(self, task: OracleTask, pages: Callable[[], Iterator[Page]], cache: str) -> None:
        self._types = xgboost_types(task.columns)
        self._open = pages
        self._pass = pages()
        super().__init__(cache_prefix=cache, release_data=True)

    def reset(self) -> None:
        """Begin another pass at the first page."""
        self._pass = self._open()

    def next(self, input_data: Callable[..., Any]) -> bool:
        """Give XGBoost the next page."""
        found = next(self._pass, None)
        if found is None:
            return False
        features, reward, weight = found
        input_data(data=features, label=reward, weight=weight, feature_types=self._types)
        return True


def train_pages(
    task: OracleTask,
    plan: TrainSettings,
    seed: int | None,
    pages: Callable[[], Iterator[Page]],
    folder: Path,
    calls: Sequence[xgboost.callback.TrainingCallback] = (),
) -> xgboost.Booster:
    """Train with XGBoost's external memory.

    Args:
        task: what the columns are.
        plan: trees and their shape.
        seed: in place of the plan's.
        pages: opens a pass; see `PageSource`.
        folder: existing directory for the bins, which need 2 to 6 bytes for each value.
        calls: called during training.
    """
    source = PageSource(task, pages, str(folder / "bins"))
    matrix = xgboost.ExtMemQuantileDMatrix(source, enable_categorical=True, nthread=plan.threads)
    try:
        return xgboost.train(booster_settings(plan, seed), matrix, plan.trees, callbacks=list(calls))
    finally:
        # XGBoost removes its files with the matrix, and warns if the directory is gone before.
        del matrix


def page_rows(task: OracleTask) -> int:
    """Return the number of rows of a page."""
    return max(256, PAGE_BYTES // (4 * len(task.columns)))


def callbacks(plan: TrainSettings, on_tree: OnTree | None) -> Sequence[xgboost.callback.TrainingCallback]:
    """Return the callbacks of a training."""
    return () if on_tree is None else (TreeProgress(plan.trees, on_tree),)
