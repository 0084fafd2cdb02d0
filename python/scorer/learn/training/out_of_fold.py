"""Predictions of rows by models that did not see them, and the calibration that they allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scorer.bundle import SigmoidMap, fit_sigmoid
from scorer.errors import BundleError
from scorer.learn.decisions import DecisionRows
from scorer.learn.errors import DataError
from scorer.learn.logistic import sigmoid
from scorer.learn.ope.crossfit import folds_by_name, folds_by_time
from scorer.learn.oracle import OracleTask
from scorer.learn.training.settings import TrainSettings
from scorer.learn.training.trainers import MemoryTrainer, Trainer
from scorer.stats.arrays import Floats, Ints


@dataclass(frozen=True)
class OutOfFold:
    """What was predicted for every settled decision without having learned from it.

    Attributes:
        margin: `[n]` log-odds for the action taken.
        fold: `[n]` which fold predicted it.
        calibration: fitted on all of them; None where the plan wants none or it would not keep the order.
        reason: why there is none.
    """

    margin: Floats
    fold: Ints
    calibration: SigmoidMap | None
    reason: str

    def probability(self) -> Floats:
        """Out-of-fold probabilities after calibration, `[n]`."""
        return calibrated(self.margin, self.calibration)


def calibrated(margin: Floats, calibration: SigmoidMap | None) -> Floats:
    """Log-odds to probabilities, through the map where there is one."""
    if calibration is None:
        return sigmoid(margin)
    return sigmoid(calibration.slope * margin + calibration.intercept)


def folds(experience: DecisionRows, plan: TrainSettings) -> Ints:
    """`[n]` the fold of every decision, from 0.

    By entity, decisions of one shopper stay together: what is learned about a shopper must not be
    predicted for the same shopper. By time, folds are consecutive blocks of equal size.
    """
    if plan.fold_by == "time":
        return folds_by_time(experience.time_ms, plan.folds)
    parts = [folds_by_name(names, plan.folds, seed=plan.seed) for names in experience.names()]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def out_of_fold(
    task: OracleTask,
    settled: DecisionRows,
    weights: Floats,
    plan: TrainSettings,
    advance: Callable[[str], None] = lambda _: None,
    trainer: Trainer | None = None,
) -> OutOfFold:
    """Predicts each fold by a model of the others, and fits the calibration on all predictions.

    The calibration is a sigmoid of the margin with a positive slope, so it never changes which of
    two actions is better; it is not weighted, as it has two parameters and every row tells both.

    Raises:
        DataError: a fold leaves too little to train on.
    """
    trainer = trainer or MemoryTrainer(task, plan)
    fold = folds(settled, plan)
    margin = np.empty(len(settled))
    for held in range(plan.folds):
        out = fold == held
        if not out.any():
            continue
        reward = settled.reward[~out]
        if not 0 < reward.sum() < len(reward):
            raise DataError(
                f"{task.name}: without fold {held + 1} of {plan.folds} all {len(reward)} rewards are alike; "
                "use fewer folds or more decisions"
            )
        kept = weights[~out] / weights[~out].mean()
        booster = trainer.train(settled.take(~out), kept)
        margin[out] = trainer.margins(booster, settled.take(out))
        advance(f"fold {held + 1} of {plan.folds}")
    if plan.calibration == "none":
        return OutOfFold(margin, fold, None, "not wanted")
    try:
        return OutOfFold(margin, fold, fit_sigmoid(margin, settled.reward), "")
    except BundleError:
        return OutOfFold(margin, fold, None, "the margins do not rise with the rewards")
