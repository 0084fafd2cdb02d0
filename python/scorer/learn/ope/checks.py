"""Which rows of a log can be evaluated on, and which policies can be judged: by name, with counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.learn.errors import DataError
from scorer.learn.experience import Experience, State

Bools = npt.NDArray[np.bool_]

# A pmf is logged as float32: K rounded numbers add up to 1 within this.
PMF_TOLERANCE = 1e-4
# The propensity is the pmf's own entry, within the rounding of float32.
PROPENSITY_TOLERANCE = 1e-4


def usable(experience: Experience, tolerated: float) -> tuple[Bools, dict[str, int]]:
    """`[n]` which decisions to evaluate on, and how many were left out for each reason.

    A row counts under the first reason that fits it, in this order. Those without a known reward
    are in order; all other reasons are defects of the log.

    Raises:
        DataError: more than `tolerated` of the settled decisions are defective: what is left
            would not stand for the whole.
    """
    rows = np.arange(len(experience))
    total = experience.pmf.sum(axis=1, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        own = experience.pmf[rows, experience.action].astype(np.float64)
        defects: dict[str, Any] = {
            "reward not a number though settled": ~np.isfinite(experience.reward),
            "reward outside 0 to 1": (experience.reward < 0) | (experience.reward > 1),
            "propensity missing": ~np.isfinite(experience.propensity),
            "propensity 0 or less": experience.propensity <= 0,
            "propensity above 1": experience.propensity > 1 + PROPENSITY_TOLERANCE,
            "pmf with a negative or missing entry": ~(experience.pmf >= 0).all(axis=1),
            "pmf not summing to 1": ~(np.abs(total - 1) <= PMF_TOLERANCE),
            "pmf above 0 on an ineligible action": ((experience.pmf > 0) & ~experience.eligible).any(axis=1),
            "propensity that is not the pmf's": ~(
                np.abs(own - experience.propensity) <= PROPENSITY_TOLERANCE
            ),
        }
    left = experience.state == State.SETTLED
    excluded = {
        "reward in flight": int((experience.state == State.IN_FLIGHT).sum()),
        "reward missing": int((experience.state == State.MISSING).sum()),
    }
    settled = int(left.sum())
    for reason, bad in defects.items():
        excluded[reason] = int((left & bad).sum())
        left = left & ~bad
    broken = settled - int(left.sum())
    if settled and broken > tolerated * settled:
        named = "; ".join(f"{excluded[reason]} with {reason}" for reason in defects if excluded[reason])
        raise DataError(
            f"off-policy evaluation: {broken} of {settled} settled decisions are defective ({named}); "
            f"at most {tolerated:.0%} may be: mend the log, the rest would not stand for the whole"
        )
    return left, {reason: count for reason, count in excluded.items() if count}


def refuse_pmf(name: str, pmf: npt.NDArray[np.float64], eligible: Bools | None) -> None:
    """Refuses a policy that is none.

    Raises:
        DataError: entries are negative or missing, rows do not sum to 1, or there is mass on actions
            that were not eligible.
    """
    broken = int((~(pmf >= 0).all(axis=1)).sum())
    if broken:
        raise DataError(f"{name}: {broken} rows of the pmf have a negative or missing entry")
    off = int((~(np.abs(pmf.sum(axis=1) - 1) <= PMF_TOLERANCE)).sum())
    if off:
        raise DataError(f"{name}: {off} rows of the pmf do not sum to 1")
    if eligible is not None:
        wrong = int(((pmf > 0) & ~eligible).any(axis=1).sum())
        if wrong:
            raise DataError(
                f"{name}: {wrong} rows of the pmf give probability to actions that were not eligible; "
                "evaluate it with the log's eligibility"
            )
