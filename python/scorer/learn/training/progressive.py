"""Chooses the sample weights by progressive validation: train up to step k, judge on step k + 1.

Judged is what matters: the value of the policy that the trained oracle would
have followed, estimated doubly robustly from the next step's log,

    DR = mean[ sum_a pi(a|x) q(x, a) + pi(a_i|x_i) / p_i (r_i - q(x_i, a_i)) ],

with one reward model q for all candidates, the mean of theirs: it was trained
before the step it judges, so nothing is used twice, and a candidate does not
mark its own paper. The weights pi / p are clipped at M: what that takes from
them, q answers for. Candidates whose value cannot be told from the best one's
(the paired difference is within two standard errors) are compared by log loss on
the actions taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from scorer.bundle import Bundle, PolicySpec
from scorer.learn.decisions import DecisionBlock, DecisionRows
from scorer.learn.oracle import OracleTask
from scorer.learn.training.preview import preview
from scorer.learn.training.settings import TrainSettings
from scorer.learn.training.steps import ValidationStep, steps
from scorer.learn.training.trainers import MemoryTrainer, Trainer
from scorer.stats.arrays import Floats
from scorer.stats.means import effective_sample_size

_BLOCK = 8192
# Weights cost variance, so they need evidence: at one standard error, chance alone chose them in a third of
# simulated logs where none was the truth's choice.
_TOLD_APART = 2.0


@dataclass(frozen=True)
class Candidate:
    """One exponent of the propensity, judged.

    Attributes:
        tau: the exponent.
        value: doubly robust value of its policy on the judged steps.
        behind: by how much its value is below the best candidate's.
        behind_error: standard error of that paired difference.
        snipw: the self-normalised estimate of the same value, without a reward model.
        log_loss: on the actions taken, uncalibrated and unweighted.
        effective_rows: of the weights of all rows.
    """

    tau: float
    value: float
    behind: float
    behind_error: float
    snipw: float
    log_loss: float
    effective_rows: float


@dataclass(frozen=True)
class WeightChoice:
    """The weights that were chosen, and why.

    Attributes:
        tau: the exponent.
        clip: largest weight before scaling.
        effective_rows: (sum w)^2 / sum w^2 over the rows trained on.
        rows: rows trained on.
        largest: largest weight after scaling.
        reason: in one line.
        judged: decisions that judged.
        candidates: every exponent that was tried; none where there was nothing to choose.
    """

    tau: float
    clip: float
    effective_rows: float
    rows: int
    largest: float
    reason: str
    judged: int = 0
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class _Judged:
    """What the steps say about the candidates: `[decisions, candidates]` each, and the weights' sums."""

    influence: Floats
    weight: Floats
    loss: Floats
    reward: Floats


def choose_weights(
    task: OracleTask,
    experience: DecisionRows,
    plan: TrainSettings,
    policy: PolicySpec,
    advance: Callable[[str], None] = lambda _: None,
    trainer: Trainer | None = None,
) -> WeightChoice:
    """Chooses among the plan's exponents.

    Args:
        task: what is chosen.
        experience: all of it; only what was known at a step trains the step.
        plan: the candidates, and how to train and judge.
        policy: the rule on top of the oracle whose value counts.
        advance: told every training that is over.
        trainer: trains the candidates; None: in memory.
    """
    propensity = experience.settled().propensity

    def chosen(tau: float, reason: str, judged: int = 0, by: Sequence[Candidate] = ()) -> WeightChoice:
        weights = sample_weights(propensity, tau, plan.clip)
        return WeightChoice(
            tau=tau,
            clip=plan.clip,
            effective_rows=effective_sample_size(weights),
            rows=len(weights),
            largest=float(weights.max()),
            reason=reason,
            judged=judged,
            candidates=tuple(by),
        )

    if len(plan.tau) == 1:
        return chosen(plan.tau[0], "the only candidate")
    found = steps(experience, plan.week_days, plan.judged_weeks)
    if not found:
        return chosen(min(plan.tau), "no step has both rewards before and after it: nothing can be judged")
    trainer = trainer or MemoryTrainer(task, plan)
    parts = [_judge(task, experience, step, plan, policy, advance, trainer) for step in found]
    judged = _Judged(*(np.concatenate(columns) for columns in zip(*map(_columns, parts), strict=True)))
    candidates = _candidates(judged, plan, propensity)
    level = [one for one in candidates if one.behind <= _TOLD_APART * one.behind_error]
    best = min(level, key=lambda one: (one.log_loss, one.tau))
    if len(level) == 1:
        reason = "its policy has the highest value"
    else:
        reason = f"least log loss of {len(level)} whose policies are equally good within two standard errors"
    return chosen(best.tau, reason, len(judged.reward), candidates)


def _candidates(judged: _Judged, plan: TrainSettings, propensity: Floats) -> list[Candidate]:
    values = judged.influence.mean(axis=0)
    best = int(values.argmax())
    behind = judged.influence[:, [best]] - judged.influence
    error = behind.std(axis=0, ddof=1) / np.sqrt(len(behind))
    snipw = (judged.weight * judged.reward[:, None]).sum(axis=0) / np.maximum(
        judged.weight.sum(axis=0), 1e-300
    )
    return [
        Candidate(
            tau=tau,
            value=float(values[at]),
            behind=float(values[best] - values[at]),
            behind_error=float(error[at]),
            snipw=float(snipw[at]),
            log_loss=float(judged.loss[:, at].mean()),
            effective_rows=effective_sample_size(sample_weights(propensity, tau, plan.clip)),
        )
        for at, tau in enumerate(plan.tau)
    ]


def _judge(
    task: OracleTask,
    experience: DecisionRows,
    step: ValidationStep,
    plan: TrainSettings,
    policy: PolicySpec,
    advance: Callable[[str], None],
    trainer: Trainer,
) -> _Judged:
    known = experience.take(step.training)
    candidates: list[Bundle] = []
    for tau in plan.tau:
        weights = sample_weights(known.propensity, tau, plan.clip)
        candidates.append(preview(task, trainer.train(known, weights), policy))
        advance(f"weights: tau {tau:g}")
    judged = experience.take(step.judged)
    parts = [_judge_block(candidates, block, plan.clip) for block in judged.blocks(_BLOCK)]
    return _Judged(*(np.concatenate(columns) for columns in zip(*map(_columns, parts), strict=True)))


def _judge_block(candidates: Sequence[Bundle], judged: DecisionBlock, clip: float) -> _Judged:
    """All candidates on some decisions; pmfs and scores are `[candidates, n, K]`."""
    told = [bundle.evaluate(judged.context, eligible=judged.eligible) for bundle in candidates]
    pmf = np.stack([one for one, _ in told])
    # Not eligible: NaN, with probability 0.
    score = np.nan_to_num(np.stack([one for _, one in told]))
    row = np.arange(len(judged))
    shared = score.mean(axis=0)
    weight = np.minimum(pmf[:, row, judged.action] / judged.propensity, clip)
    direct = (pmf * shared).sum(axis=2)
    influence = direct + weight * (judged.reward - shared[row, judged.action])
    taken = np.clip(score[:, row, judged.action], 1e-12, 1 - 1e-12)
    loss = -np.where(judged.reward > 0, np.log(taken), np.log1p(-taken))
    return _Judged(influence.T, weight.T, loss.T, judged.reward)


def _columns(judged: _Judged) -> tuple[Floats, ...]:
    return judged.influence, judged.weight, judged.loss, judged.reward


def sample_weights(propensity: Floats, tau: float, clip: float) -> Floats:
    """Return how much each logged decision counts in training: `min(p^-tau, clip)`, scaled to mean 1.

    tau = 0 is plain regression, right where the model can express the truth. tau = 1 is inverse propensity,
    the fit as if actions had been drawn evenly, at the price of variance. XGBoost's `min_child_weight` and
    regularisation count in weights, hence the mean of 1.

    Args:
        propensity: `[n]` probabilities of the actions taken, each above 0.
        tau: Exponent, from 0 to 1.
        clip: Largest weight before scaling.
    """
    raw = np.minimum(np.asarray(propensity, dtype=np.float64) ** -tau, clip)
    return np.asarray(raw / raw.mean(), dtype=np.float64)
