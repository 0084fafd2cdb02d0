"""The training step: experience in, a generation out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

from scorer.bundle import Cap
from scorer.learn.decisions import DecisionRows
from scorer.learn.errors import DataError
from scorer.learn.experience import Experience, State
from scorer.learn.logistic import sigmoid
from scorer.learn.oracle import Oracle, OracleTask
from scorer.learn.training.checks import check
from scorer.learn.training.comparison import Compared, compare
from scorer.learn.training.generation import Generation
from scorer.learn.training.members import train_members
from scorer.learn.training.out_of_fold import OutOfFold, out_of_fold
from scorer.learn.training.policies import choose_gamma, judging_spec, policy_spec
from scorer.learn.training.progressive import choose_weights, sample_weights
from scorer.learn.training.settings import TrainSettings
from scorer.learn.training.steps import ValidationStep, steps
from scorer.learn.training.trained import Trained
from scorer.learn.training.trainers import MemoryTrainer, Trainer

# Contexts that were not trained on are the bundle's reference if there are so many.
_REFERENCE = 256


def fit(
    task: OracleTask,
    experience: DecisionRows,
    plan: TrainSettings | None = None,
    previous: Generation | Trained | None = None,
    *,
    caps: Sequence[Cap] = (),
    data_digest: str | None = None,
    notes: Mapping[str, Any] | None = None,
    advance: Callable[[str], None] = lambda _: None,
    trainer: Trainer | None = None,
) -> Trained:
    """Trains one generation on the settled decisions.

    Args:
        task: what is chosen, given what.
        experience: decisions over the task's catalogue; those in flight or without outcome teach nothing.
        plan: the settings; None: the defaults.
        previous: the generation before, whose gamma limits this one's.
        caps: prices that the policy takes off scores.
        data_digest: of the experience, for lineage; None: computed.
        notes: how the experience was made, for lineage: the join's findings, moment and settings.
        advance: told each training that is over, in one line.
        trainer: trains the forests; None: in memory.

    Returns:
        The generation. Same experience, plan and previous: the same one.

    Raises:
        DataError: the experience does not fit the task or teaches nothing; the rule is named.
    """
    plan = plan or TrainSettings()
    trainer = trainer or MemoryTrainer(task, plan)
    before = (
        Generation(previous.generation, previous.gamma.gamma) if isinstance(previous, Trained) else previous
    )
    check(task, experience, plan)
    settled = experience.settled()
    judging = judging_spec(plan.policy, None if before is None else before.gamma, caps)
    choice = choose_weights(task, experience, plan, judging, advance, trainer)
    weights = sample_weights(settled.propensity, choice.tau, choice.clip)
    unseen = out_of_fold(task, settled, weights, plan, advance, trainer)
    gamma = choose_gamma(
        unseen.probability(),
        settled.reward,
        float(settled.eligible_count.mean()),
        plan.policy,
        before,
    )
    booster = trainer.train(settled, weights)
    advance("oracle")
    members = train_members(settled, weights, plan, trainer, advance)
    comparison = _comparison(task, experience, choice.tau, plan, advance)
    number = 1 if before is None else before.number + 1
    metrics = _metrics(settled, unseen)
    digest = data_digest or experience.digest()
    rest = experience.take(experience.state != State.SETTLED)
    if len(rest) < _REFERENCE:
        rest = settled.take(slice(-max(1, len(settled) // 5), None))
    oracle = Oracle(
        task=task,
        booster=booster,
        metrics=metrics,
        training_contexts=settled.contexts(),
        reference_contexts=rest.contexts(),
        data_digest=digest,
    )
    lineage: dict[str, Any] = {
        "generation": number,
        "previous": None if before is None else asdict(before),
        "decisions": _decisions(experience),
        "join": dict(notes or {}),
        "weights": asdict(choice),
        "calibration": None if unseen.calibration is None else unseen.calibration.model_dump(),
        "calibration_left_out": unseen.reason,
        "gamma": asdict(gamma),
        "out_of_fold": metrics,
        "comparison": [one.repeatable() for one in comparison],
        "plan": plan.model_dump(mode="json"),
    }
    salt = f"{digest} generation {number} seed {plan.seed}"
    return Trained(
        task=task,
        oracle=oracle,
        calibration=unseen.calibration,
        policy=policy_spec(plan.policy, gamma.gamma, len(members), salt, caps),
        weights=choice,
        gamma=gamma,
        members=members,
        comparison=comparison,
        metrics=metrics,
        out_of_fold=unseen,
        plan=plan,
        generation=number,
        lineage=lineage,
    )


def _comparison(
    task: OracleTask,
    experience: DecisionRows,
    tau: float,
    plan: TrainSettings,
    advance: Callable[[str], None],
) -> tuple[Compared, ...]:
    if not plan.compare:
        return ()
    if not isinstance(experience, Experience):
        raise DataError(
            f"{task.name}: the comparison needs all decisions in memory; set [train] compare = false"
        )
    return compare(task, experience, tau, plan, advance)


def trainings(experience: DecisionRows, plan: TrainSettings) -> int:
    """How many trainings `fit` will tell of, for a bar."""
    judged = 0 if len(plan.tau) == 1 else len(plan.tau) * len(_steps(experience, plan, plan.judged_weeks))
    compared = 3 if plan.compare and _steps(experience, plan, 1) else 0
    return judged + plan.folds + 1 + plan.members + compared


def _steps(experience: DecisionRows, plan: TrainSettings, last: int) -> list[ValidationStep]:
    return steps(experience, plan.week_days, last)


def _metrics(settled: DecisionRows, unseen: OutOfFold) -> dict[str, float]:
    raw, mended = sigmoid(unseen.margin), unseen.probability()
    return {
        "rows": float(len(settled)),
        "auc": float(roc_auc_score(settled.reward, raw)),
        "log_loss_uncalibrated": float(log_loss(settled.reward, raw)),
        "log_loss": float(log_loss(settled.reward, mended)),
        "brier": float(((mended - settled.reward) ** 2).mean()),
        "mean_reward": float(settled.reward.mean()),
        "mean_predicted": float(mended.mean()),
    }


def _decisions(experience: DecisionRows) -> dict[str, Any]:
    settled = experience.state == State.SETTLED
    return {
        "count": len(experience),
        "settled": int(settled.sum()),
        "in_flight": int((experience.state == State.IN_FLIGHT).sum()),
        "missing": int((experience.state == State.MISSING).sum()),
        "first_ms": int(experience.time_ms.min()),
        "last_ms": int(experience.time_ms.max()),
        "actions_taken": len(np.unique(experience.action[settled])),
        "bundles": list(experience.bundles),
    }
