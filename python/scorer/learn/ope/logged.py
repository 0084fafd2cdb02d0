"""Which rows of a log can be evaluated on, and the policies that are judged on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.learn.errors import DataError
from scorer.learn.experience import Experience, State
from scorer.stats.arrays import Bools, Floats, Ints


@dataclass(frozen=True)
class Logged:
    """`n` settled choices among `K` actions whose propensities can be trusted.

    Attributes:
        action: `[n]` position of what was chosen.
        reward: `[n]` between 0 and 1.
        propensity: `[n]` with which probability it was chosen, above 0.
        pmf: `[n, K]` the whole of what the logging policy said; None where the log holds propensities only.
        eligible: `[n, K]`; None: every action.
        clusters: `[n]` rows that belong together (attempts at one purchase) and count as one draw in
            intervals; None: every row is its own.
        logger: `[n]` which of the logging policies chose.
        kept: `[n]` positions in the experience this came from.
        excluded: reason to number of rows that were left out.
    """

    action: Ints
    reward: Floats
    propensity: Floats
    pmf: Floats | None = None
    eligible: Bools | None = None
    clusters: Ints | None = None
    logger: Ints | None = None
    kept: Ints | None = None
    excluded: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.action) == 0:
            raise DataError("off-policy evaluation: no rows are left; " + _reasons(self.excluded))
        if not (self.propensity > 0).all():
            count = int((~(self.propensity > 0)).sum())
            raise DataError(
                f"off-policy evaluation: propensity of {count} rows is not above 0; leave them out"
            )
        if not np.isfinite(self.reward).all():
            count = int((~np.isfinite(self.reward)).sum())
            raise DataError(f"off-policy evaluation: reward of {count} rows is not a number; leave them out")

    def __len__(self) -> int:
        return len(self.action)

    @classmethod
    def read(cls, experience: Experience, *, tolerated: float = 0.05) -> Logged:
        """The settled decisions that can be evaluated on; what is left out is counted by reason.

        Decisions in flight and missing rewards are left out, never taken for declines. Defects
        (`checks.usable` lists them) are left out too while they are few.

        Args:
            experience: of a join or a simulator.
            tolerated: share of settled decisions that may be defective; above it the log is refused.

        Raises:
            DataError: nothing is left, too much is defective, or only one action was ever taken.
        """
        keep, excluded = usable(experience, tolerated)
        kept = np.flatnonzero(keep)
        rows = experience.take(kept)
        if len(kept) and len(np.unique(rows.action)) == 1:
            raise DataError(
                f"off-policy evaluation: all {len(kept)} usable decisions took action "
                f"{experience.actions[int(rows.action[0])]}; a log of one action says nothing about others"
            )
        return cls(
            action=rows.action,
            reward=rows.reward,
            propensity=rows.propensity,
            pmf=rows.pmf.astype(np.float64),
            eligible=rows.eligible,
            logger=rows.bundle,
            kept=kept,
            excluded=excluded,
        )

    def take(self, rows: npt.NDArray[Any] | slice) -> Logged:
        """Return the logged choices at `rows`: a mask, indices or a slice."""
        names = ("action", "reward", "propensity", "pmf", "eligible", "clusters", "logger", "kept")
        columns = {name: getattr(self, name) for name in names}
        taken: dict[str, Any] = {name: None if c is None else c[rows] for name, c in columns.items()}
        return replace(self, **taken)


@dataclass(frozen=True)
class Target:
    """A policy to judge on a log.

    Attributes:
        logged: the log.
        pmf: `[n, K]` what the policy would have said for every row.
        model: `[n, K]` predicted rewards that the rows they are for did not teach (`cross_fit`); None: none.
        other_weights: `[n, K]` importance weights in place of `pmf / logged.pmf` (`weighting`); None: those.
        name: in tables.
    """

    logged: Logged
    pmf: Floats
    model: Floats | None = None
    other_weights: Floats | None = None
    name: str = "target"

    def __post_init__(self) -> None:
        expected = self.pmf.shape
        if len(expected) != 2 or expected[0] != len(self.logged):
            raise DataError(
                f"{self.name}: pmf has shape {expected}; one row is needed for each of the "
                f"{len(self.logged)} of the log"
            )
        for what in (self.logged.pmf, self.model, self.other_weights):
            if what is not None and what.shape != expected:
                raise DataError(
                    f"{self.name}: shapes {what.shape} and {expected} are not over the same actions"
                )
        if self.model is not None and not np.isfinite(self.model).all():
            raise DataError(f"{self.name}: the reward model predicts values that are not numbers")
        refuse_pmf(self.name, self.pmf, self.logged.eligible)

    @cached_property
    def weight(self) -> Floats:
        """`[n]` of the action taken."""
        taken = np.arange(len(self.logged)), self.logged.action
        if self.other_weights is not None:
            return np.asarray(self.other_weights[taken])
        return np.asarray(self.pmf[taken] / self.logged.propensity)

    def weights(self, rows: slice) -> Floats:
        """`[rows, K]` of every action; 0 where the log could not have taken it."""
        if self.other_weights is not None:
            return self.other_weights[rows]
        if self.logged.pmf is None:
            raise DataError(f"{self.name}: the log holds no whole pmfs, which this needs")
        logging = self.logged.pmf[rows]
        return np.divide(self.pmf[rows], logging, out=np.zeros_like(logging), where=logging > 0)

    @cached_property
    def direct(self) -> Floats:
        """`[n]` what the model expects of the policy; 0 without a model."""
        if self.model is None:
            return np.zeros(len(self.logged))
        return np.asarray(np.einsum("nk,nk->n", self.pmf, self.model))

    @cached_property
    def predicted(self) -> Floats:
        """`[n]` what the model expects of the action taken; 0 without a model."""
        if self.model is None:
            return np.zeros(len(self.logged))
        return np.asarray(self.model[np.arange(len(self.logged)), self.logged.action])

    def needs_model(self, estimator: str) -> Floats:
        """The model, or an error that names what wants it."""
        if self.model is None:
            raise DataError(f"{estimator} needs a reward model; make one with cross_fit")
        return self.model


def _reasons(excluded: Mapping[str, int]) -> str:
    named = "; ".join(f"{count} with {reason}" for reason, count in excluded.items() if count)
    return f"left out: {named}" if named else "the log is empty"


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
