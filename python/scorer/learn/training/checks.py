"""What cannot be learned from, refused by name."""

from __future__ import annotations

import numpy as np

from scorer.learn.decisions import DecisionRows
from scorer.learn.errors import DataError
from scorer.learn.experience import State
from scorer.learn.oracle import OracleTask
from scorer.learn.training.settings import TrainSettings


def check(task: OracleTask, experience: DecisionRows, plan: TrainSettings) -> None:
    """Refuses experience that does not fit the task or teaches nothing.

    Raises:
        DataError: which rule is broken, and what to do.
    """
    name = task.name
    catalogue = tuple(action.id for action in task.actions)
    if experience.actions != catalogue:
        missing = [action for action in catalogue if action not in experience.actions]
        extra = [action for action in experience.actions if action not in catalogue]
        if missing or extra:
            what = (
                f"{len(missing)} of the task's actions are not in it, {len(extra)} of its are not the task's"
            )
        else:
            what = "the order differs"
        raise DataError(
            f"{name}: the experience has another catalogue ({what}); join it for this task's bundle"
        )
    if experience.context_columns != len(task.context):
        raise DataError(
            f"{name}: contexts have {experience.context_columns} columns, the task has {len(task.context)}; "
            "join the log again with the task's bundle"
        )
    settled = experience.state == State.SETTLED
    count = int(settled.sum())
    if count == 0:
        flight = int((experience.state == State.IN_FLIGHT).sum())
        raise DataError(
            f"{name}: no outcome at all: of {len(experience)} decisions {flight} are in flight and "
            f"{len(experience) - flight} have none; wait, or check [join] outcome"
        )
    if count < plan.fewest:
        raise DataError(
            f"{name}: {count} settled decisions, at least {plan.fewest} are needed; "
            "wait for more, or lower [train] fewest"
        )
    reward, propensity = experience.reward[settled], experience.propensity[settled]
    wrong = int((~np.isin(reward, (0.0, 1.0))).sum())
    if wrong:
        raise DataError(f"{name}: {wrong} settled rewards are neither 0 nor 1; join the log again")
    if reward.min() == reward.max():
        raise DataError(
            f"{name}: all {count} rewards are {reward[0]:g}: there is nothing to tell apart; "
            "check [join] outcome and threshold"
        )
    wrong = int((~((propensity > 0) & (propensity <= 1))).sum())
    if wrong:
        raise DataError(
            f"{name}: {wrong} settled decisions have a propensity that is not above 0 and at most 1; "
            "join the log again, which leaves them out"
        )
    wrong = int((~experience.took_eligible[settled]).sum())
    if wrong:
        raise DataError(
            f"{name}: {wrong} settled decisions took an action that was not eligible; "
            "join the log again, which leaves them out"
        )
    taken = np.unique(experience.action[settled])
    if len(taken) == 1:
        raise DataError(
            f'{name}: every settled decision took "{catalogue[taken[0]]}": nothing can be learned about '
            "others; let the policy explore (epsilon, floor)"
        )
