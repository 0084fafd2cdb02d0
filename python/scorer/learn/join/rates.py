"""How many outcomes arrived: per family and action, and whether that depends on the action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.learn.experience import Experience, State
from scorer.learn.join.maturity import Windows
from scorer.stats.arrays import Ints

# Where fewer misses than this are expected, actions are taken together: the test's approximation needs it.
_EXPECTED = 5.0


@dataclass(frozen=True)
class Rate:
    """Outcomes of some decisions.

    Attributes:
        name: of the family or action.
        decisions: all of them.
        settled: with a reward.
        in_flight: whose window has not passed.
        missing: whose window passed without an outcome.
        matured: whose window has passed.
        rate: share of the matured that have a reward; NaN where none has matured.
        mean_reward: of the settled; NaN where there is none.
    """

    name: str
    decisions: int
    settled: int
    in_flight: int
    missing: int
    matured: int
    rate: float
    mean_reward: float

    def as_dict(self) -> dict[str, Any]:
        """For notes and JSON; what is not known is None."""
        return {key: None if value != value else value for key, value in asdict(self).items()}  # noqa: PLR0124


@dataclass(frozen=True)
class Dependence:
    """Whether missing outcomes depend on the action: chi-squared over the matured decisions.

    Attributes:
        statistic: of the test.
        freedom: its degrees of freedom.
        p: how likely so much difference is by chance.
        cramers_v: its size, 0 (none) to 1.
    """

    statistic: float
    freedom: int
    p: float
    cramers_v: float


def rates(
    experience: Experience, group: Ints, names: Sequence[str], passed: npt.NDArray[np.bool_]
) -> list[Rate]:
    """One row per group that has decisions.

    Args:
        experience: `n` decisions.
        group: `[n]` position in `names`.
        names: of the groups.
        passed: `[n]` whether the window has passed.
    """

    def count(of: npt.NDArray[Any]) -> Ints:
        return np.bincount(group[of], minlength=len(names)).astype(np.int64)

    settled = experience.state == State.SETTLED
    every, known = count(np.ones(len(group), dtype=bool)), count(settled)
    flight, missing = count(experience.state == State.IN_FLIGHT), count(experience.state == State.MISSING)
    matured, joined = count(passed), count(passed & settled)
    reward = np.bincount(group[settled], weights=experience.reward[settled], minlength=len(names))
    with np.errstate(invalid="ignore", divide="ignore"):
        rate, mean = joined / matured, reward / known
    return [
        Rate(
            str(names[at]),
            int(every[at]),
            int(known[at]),
            int(flight[at]),
            int(missing[at]),
            int(matured[at]),
            float(rate[at]),
            float(mean[at]),
        )
        for at in np.flatnonzero(every).tolist()
    ]


def dependence(of: Sequence[Rate]) -> Dependence | None:
    """Tests the rates of the actions for being one and the same; None where nothing can be told."""
    matured = np.array([one.matured for one in of], dtype=np.float64)
    missing = np.array([one.missing for one in of], dtype=np.float64)
    share = missing.sum() / matured.sum() if matured.sum() else 0.0
    if not 0 < share < 1:
        return None
    expected = matured * min(share, 1 - share)
    large = expected >= _EXPECTED
    table = np.stack([missing, matured - missing], axis=1)
    rest = table[~large].sum(axis=0)
    table = (
        np.vstack([table[large], rest]) if rest.sum() * min(share, 1 - share) >= _EXPECTED else table[large]
    )
    if len(table) < 2:
        return None
    from scipy.stats import chi2

    total = table.sum()
    fair = np.outer(table.sum(axis=1), table.sum(axis=0)) / total
    statistic = float(((table - fair) ** 2 / fair).sum())
    freedom = len(table) - 1
    return Dependence(
        statistic, freedom, float(chi2.sf(statistic, freedom)), float(np.sqrt(statistic / total))
    )


def windows_passed(experience: Experience, now_ms: int, of: Windows) -> npt.NDArray[np.bool_]:
    """`[n]` whether each decision's window has passed."""
    return np.asarray(now_ms - experience.time_ms >= of.window_ms[experience.action])
