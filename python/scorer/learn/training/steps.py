"""The steps in time that training is judged by: what was known at a moment, and what came after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scorer.learn.decisions import DecisionRows
from scorer.learn.experience import State

DAY_MS = 86_400_000
# In a log that is too short for steps the later part judges the earlier one.
_SHORT_SPLIT = 0.7
# A step with fewer settled decisions on either side says nothing.
FEWEST = 50

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True)
class ValidationStep:
    """Train on what was known at `at_ms`, judge on the decisions of the step after it.

    Attributes:
        at_ms: the moment.
        training: settled decisions whose reward was known by then.
        judged: settled decisions from then on, for one step.
    """

    at_ms: int
    training: Rows
    judged: Rows


def steps(experience: DecisionRows, days: float, last: int) -> list[ValidationStep]:
    """The last steps, earliest first; the final one ends with the experience.

    A step whose two sides do not both hold both rewards is left out. A log shorter than a step
    and a half is one step: its first 70 % by time against the rest.
    """
    settled = experience.state == State.SETTLED
    if not settled.any():
        return []
    times = experience.time_ms[settled]
    end, begin = int(times.max()) + 1, int(times.min())
    length = round(days * DAY_MS)
    if end - begin < 1.5 * length:
        ends = [(int(np.quantile(times, _SHORT_SPLIT)), end)]
    else:
        # Rounded: four weeks of a log hold a little less than four times seven days.
        count = min(last, round((end - begin) / length) - 1)
        ends = [(end - (back + 1) * length, end - back * length) for back in reversed(range(count))]
    found = []
    for at, until in ends:
        known = settled & (experience.time_ms < at) & (experience.settled_ms < at)
        after = settled & (experience.time_ms >= at) & (experience.time_ms < until)
        step = ValidationStep(at, np.flatnonzero(known), np.flatnonzero(after))
        if all(_teaches(experience.reward[rows]) for rows in (step.training, step.judged)):
            found.append(step)
    return found


def _teaches(reward: npt.NDArray[np.float64]) -> bool:
    return len(reward) >= FEWEST and 0 < reward.sum() < len(reward)
