"""When a decision's outcome may be used, and with what weight, so that fast outcomes do not count for all.

Where failures take longer than successes (a shopper who walks away from a
challenge is given up only after a while) the outcomes known early are a
biased sample. So each decision gets one moment, the same for its family
whatever happens to it: `age` after it was made. Is its outcome known by then
it counts with weight 1 / P(known by then | family, outcome), else it never
counts; those that were known stand for those that were not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scorer.learn.errors import DataError
from scorer.learn.experience import Experience, State
from scorer.stats.arrays import Floats, Ints

if TYPE_CHECKING:
    from scorer.learn.oracle import OracleTask

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

# Fewer matured outcomes of one kind say too little about its delay: the family's, then all, are taken.
ENOUGH = 30


@dataclass(frozen=True)
class Admitted:
    """The decisions that may be used, in the order in which they may.

    Attributes:
        row: `[m]` positions in the experience.
        at_ms: `[m]` from when on, Unix time.
        weight: `[m]` inverse probability of having been known by then, scaled
            within a family so that it says how many outcomes were really seen.
        share: `[m]` the same, scaled to at most 1 in each family.
    """

    row: Ints
    at_ms: Ints
    weight: Floats
    share: Floats


@dataclass(frozen=True)
class Delays:
    """How long outcomes take, by family of actions.

    Attributes:
        factor: whose values are the families; None for a single one.
        families: their names.
        of_action: `[K]` each action's family.
        age_ms: `[families]` how old a decision is when it counts or never does.
        known: `[families, 2]` P(known by then | family, outcome), of failures and of successes.
        effective: `[families]` what weights are multiplied by to say how many outcomes were really seen:
            those that differ are worth (Σw)²/Σw² (Kish).
    """

    factor: str | None
    families: tuple[str, ...]
    of_action: Ints
    age_ms: Ints
    known: Floats
    effective: Floats

    @classmethod
    def measured(
        cls,
        experience: Experience,
        task: OracleTask,
        now_ms: int,
        *,
        factor: str | None,
        window_hours: float = 72.0,
        quantile: float = 0.7,
    ) -> Delays:
        """From decisions old enough that all is known about them.

        Args:
            experience: as of `now_ms`.
            task: the catalogue.
            now_ms: Unix time.
            factor: families are its values; None for one family.
            window_hours: after which no outcome comes any more.
            quantile: the share of each kind of outcome that a decision waits for.

        Raises:
            DataError: no decision is old enough, or the factor is unknown.
        """
        _, of_action = families(task, factor)
        old = (experience.state == State.SETTLED) & (experience.time_ms + window_hours * HOUR_MS <= now_ms)
        return cls.of(
            experience.settled_ms[old] - experience.time_ms[old],
            of_action[experience.action[old]],
            experience.reward[old],
            task,
            factor=factor,
            window_hours=window_hours,
            quantile=quantile,
        )

    @classmethod
    def of(
        cls,
        delay: Ints,
        family: Ints,
        reward: Floats,
        task: OracleTask,
        *,
        factor: str | None,
        window_hours: float,
        quantile: float,
    ) -> Delays:
        """From the delays of decisions that are old enough.

        Args:
            delay: `[n]` milliseconds from each decision to its outcome.
            family: `[n]` family of its action.
            reward: `[n]` 0 or 1.
            task: the catalogue.
            factor: families are its values; None for one family.
            window_hours: after which no outcome comes any more.
            quantile: the share of each kind of outcome that a decision waits for.

        Raises:
            DataError: there are too few, or the factor is unknown.
        """
        names, of_action = families(task, factor)
        if len(delay) < ENOUGH:
            raise DataError(
                f"overlay: {len(delay)} outcomes are older than {window_hours:g} hours; delays need"
                f" {ENOUGH}, give it a longer log"
            )
        age, known = np.zeros(len(names), dtype=np.int64), np.ones((len(names), 2))
        effective = np.ones(len(names))
        for f in range(len(names)):
            kinds = [_pick(delay, family == f, reward == outcome) for outcome in (0, 1)]
            age[f] = max(int(np.quantile(kind, quantile, method="higher")) for kind in kinds)
            known[f] = [float((kind <= age[f]).mean()) for kind in kinds]
            seen = np.array([int((kind <= age[f]).sum()) for kind in kinds])
            effective[f] = (seen / known[f]).sum() / (seen / known[f] ** 2).sum()
        return cls(factor, names, of_action, age, known, effective)

    def admitted(self, experience: Experience) -> Admitted:
        """Which decisions count, and from when on; the same however much later one asks."""
        settled = np.flatnonzero(experience.state == State.SETTLED)
        found = self.admit(
            experience.time_ms[settled],
            experience.settled_ms[settled],
            experience.action[settled],
            experience.reward[settled],
        )
        return replace(found, row=settled[found.row])

    def admit(self, time_ms: Ints, settled_ms: Ints, action: Ints, reward: Floats) -> Admitted:
        """The same of decisions whose outcome is known, `[n]` each."""
        family = self.of_action[action]
        waited = time_ms + self.age_ms[family]
        row = np.flatnonzero(settled_ms <= waited)
        row = row[np.argsort(waited[row], kind="stable")]
        chosen, outcome = family[row], reward[row].astype(np.int64)
        weight = 1 / self.known
        most = weight / weight.max(axis=1, keepdims=True)
        weight = weight * self.effective[:, None]
        return Admitted(row, waited[row], weight[chosen, outcome], most[chosen, outcome])


def families(task: OracleTask, factor: str | None) -> tuple[tuple[str, ...], Ints]:
    """Names of the families of delay, and `[K]` each action's family.

    Args:
        task: the catalogue.
        factor: families are its values; None for one family.

    Raises:
        DataError: the factor is unknown.
    """
    names = sorted({action.factors.get(factor, "") for action in task.actions}) if factor else ["all"]
    if names == [""]:
        raise DataError(f'overlay: no action has the factor "{factor}" that families of delay are told by')
    of_action = [names.index(action.factors.get(factor, "")) if factor else 0 for action in task.actions]
    return tuple(names), np.array(of_action, dtype=np.int64)


def measured_at_ms(old_ms: Ints, now_ms: int, window_hours: float) -> int:
    """The moment at which delays are measured: the newest midnight (UTC), or now if too little is known then.

    Between two midnights delays are the same, so that an outcome that was used once is used in the same way
    again.

    Args:
        old_ms: `[n]` times of the decisions with a known outcome.
        now_ms: Unix time.
        window_hours: after which no outcome comes any more.
    """
    midnight = now_ms - now_ms % DAY_MS
    return midnight if int((old_ms + window_hours * HOUR_MS <= midnight).sum()) >= ENOUGH else now_ms


def _pick(delay: Ints, family: npt.NDArray[np.bool_], outcome: npt.NDArray[np.bool_]) -> Ints:
    for rows in (family & outcome, family):
        if int(rows.sum()) >= ENOUGH:
            return np.asarray(delay[rows])
    return delay
