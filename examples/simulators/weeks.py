"""Weeks of simulated payments: returning shoppers, issuers whose behaviour changes.

Actions, rules and formulas are those of `payments`, over time. The traffic has its own seed. Shoppers, drift
and everything hidden come from the world (`examples.simulators.worlds`). docs/simulators.md states every
distribution, and a test fixes their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.fraud.transactions import DAY_MS
from examples.simulators.actions import FACTORS, codes
from examples.simulators.payments import (
    ISSUER_NAMES,
    Bools,
    Contexts,
    Floats,
    Ints,
    cards,
)
from examples.simulators.task import context_rows
from examples.simulators.worlds import OWN, WorldSpec, history, issuer_of_cards, issuer_shares
from scorer.learn.errors import DataError

HOUR_MS = 3_600_000
WEEK_MS = 7 * DAY_MS
_BLOCK = 8192

Rows32 = npt.NDArray[np.float32]
PolicyFunction = Callable[[Rows32, Bools], npt.NDArray[Any]]
"""Maps contexts `[n, context columns]` and eligible actions `[n, K]` to probabilities `[n, K]`."""


@dataclass(frozen=True)
class Shock:
    """From a certain time on, an issuer declines one family of actions.

    Attributes:
        hour: Hours from the start to the shock.
        issuer: Name of the issuer.
        factor: Factor of the family.
        value: Value of the factor that defines the family.
        declined: Share of otherwise authorised payments that are declined.
        hours: Duration in hours; None: without end.
    """

    hour: float
    issuer: str
    factor: str
    value: str
    declined: float = 0.9
    hours: float | None = None

    def __post_init__(self) -> None:
        for name, value, known in (
            ("issuer", self.issuer, ISSUER_NAMES),
            ("factor", self.factor, tuple(FACTORS)),
            ("value", self.value, FACTORS.get(self.factor, ())),
        ):
            if value not in known:
                raise DataError(f'shock: {name} "{value}" is unknown; one of {", ".join(known)}')
        if not (0 < self.declined <= 1 and self.hour >= 0 and (self.hours is None or self.hours > 0)):
            raise DataError(
                f"shock: hour {self.hour}, declined {self.declined}, hours {self.hours}: hour must be 0 or"
                " more, declined above 0 and at most 1, hours above 0"
            )

    @classmethod
    def parse(cls, text: str) -> Shock:
        """Parse `HOUR:ISSUER:FACTOR=VALUE`, the format of the command line.

        Raises:
            DataError: The text does not have this format, or a name is unknown.
        """
        try:
            hour, issuer, family = text.split(":")
            factor, value = family.split("=")
            return cls(float(hour), issuer, factor, value)
        except ValueError as error:
            raise DataError(
                f'shock: "{text}" is not HOUR:ISSUER:FACTOR=VALUE, such as 132:NL-bank-0:route=A'
            ) from error

    def concerns(self, arrivals: Arrivals, start_ms: int) -> Bools:
        """Return `[n]` whether the payments are the issuer's during the shock.

        Args:
            arrivals: `n` payments.
            start_ms: Unix time of the start of the simulation, milliseconds.
        """
        since = (arrivals.time_ms - start_ms) / HOUR_MS - self.hour
        during = (since >= 0) & (since < (np.inf if self.hours is None else self.hours))
        return np.asarray(during & (arrivals.contexts.issuer == ISSUER_NAMES.index(self.issuer)))

    @property
    def family(self) -> Bools:
        """`[K]` whether an action belongs to the declined family."""
        return np.asarray(
            codes()[:, list(FACTORS).index(self.factor)] == FACTORS[self.factor].index(self.value)
        )


@dataclass(frozen=True)
class WeeksPlan:
    """The plan of a simulation.

    Attributes:
        weeks: Number of weeks. The first is week 1.
        per_hour: Payments per hour, on average over a day.
        shoppers: Number of shoppers.
        start: First day, YYYY-MM-DD.
        swing: Share by which the busiest hour (15:00) exceeds the average; 0: all hours are equal.
        drift_week: The week at whose start the behaviour of issuers changes; None: never.
        drift_issuers: Number of issuers that change.
        shocks: Shocks in addition to the drift.
    """

    weeks: int = 9
    per_hour: float = 60.0
    shoppers: int = 20_000
    start: str = "2026-01-05"
    swing: float = 0.6
    drift_week: int | None = 6
    drift_issuers: int = 3
    shocks: tuple[Shock, ...] = ()

    def __post_init__(self) -> None:
        if self.weeks < 1 or self.shoppers < 1 or not self.per_hour * 24 >= 1 or not 0 <= self.swing < 1:
            raise DataError(
                f"simulation: weeks {self.weeks}, shoppers {self.shoppers}, per_hour {self.per_hour}, swing"
                f" {self.swing}: at least a week, a shopper and a payment a day are needed, swing in [0, 1)"
            )

    @property
    def start_ms(self) -> int:
        """Unix time of the first day, milliseconds."""
        return int(np.datetime64(self.start, "ms").astype(np.int64))

    def week_ms(self, week: int) -> int:
        """Return the Unix time at which week `week` (from 1) starts, milliseconds."""
        return self.start_ms + (week - 1) * WEEK_MS


@dataclass(frozen=True)
class Arrivals:
    """`n` payments in order of time, before an action is chosen.

    Attributes:
        contexts: Their known properties.
        number: `[n]` numbers that are unique within a seed.
        shopper: `[n]` shoppers.
        time_ms: `[n]` Unix times, milliseconds.
        luck: `[n, 4]` uniform draws that determine the choice, whether the outcome is late, how late it is,
            and whether it is ever reported. They are the same for every policy, like `Contexts.chance`, and
            are not features.
    """

    contexts: Contexts
    number: Ints
    shopper: Ints
    time_ms: Ints
    luck: Floats

    def __len__(self) -> int:
        return len(self.shopper)

    def take(self, rows: npt.NDArray[Any] | slice) -> Arrivals:
        """Return the payments at `rows`."""
        taken = Arrivals(
            self.contexts.take(rows),
            self.number[rows],
            self.shopper[rows],
            self.time_ms[rows],
            self.luck[rows],
        )
        # Values that were computed for all payments are not computed again for the parts.
        for name in ("rows", "eligible", "entity"):
            if name in self.__dict__:
                taken.__dict__[name] = self.__dict__[name][rows]
        return taken

    def between(self, start_ms: int, end_ms: int) -> Arrivals:
        """Return the payments in `[start_ms, end_ms)`."""
        first, last = np.searchsorted(self.time_ms, [start_ms, end_ms])
        return self.take(slice(int(first), int(last)))

    @cached_property
    def rows(self) -> Rows32:
        """`[n, context columns]` features of requests."""
        return context_rows(self.contexts)

    @cached_property
    def eligible(self) -> Bools:
        """`[n, K]` whether an action is eligible."""
        parts = [self.contexts.take(part).eligible() for part in blocks(len(self))]
        return np.concatenate(parts) if parts else self.contexts.eligible()

    @cached_property
    def entity(self) -> npt.NDArray[np.str_]:
        """`[n]` names of the shoppers."""
        return np.char.add("shopper-", np.char.zfill(self.shopper.astype(np.str_), 7))


class Market:
    """Traffic and hidden truth over time. `truth` and `best` are for evaluation only.

    Args:
        plan: The plan of the simulation.
        seed: Seed of the traffic.
        world: The shoppers and the responses of issuers, independent of the traffic's seed.
    """

    def __init__(self, plan: WeeksPlan, seed: int = 0, world: WorldSpec = OWN) -> None:
        self.plan, self.seed, self.world = plan, seed, world
        self._history = history(world, plan.weeks, plan.drift_week, plan.drift_issuers)
        self._cards = cards(plan.shoppers, world.seed, issuer_shares(world))
        self._mean_amount = _stream(world, 5, plan.shoppers) * 95 + 5
        self._busy = np.cumsum(_stream(world, 6, plan.shoppers))

    def day(self, day: int) -> Arrivals:
        """Return the payments of day `day` (from 0). They do not depend on other days."""
        plan = self.plan
        n = int((day + 1) * 24 * plan.per_hour) - int(day * 24 * plan.per_hour)
        rng = np.random.default_rng([self.seed, day, self.world.seed])
        shopper = np.searchsorted(self._busy, rng.random(n) * self._busy[-1], side="right")
        busy = np.cumsum(1 + plan.swing * np.cos(2 * np.pi * (np.arange(24) + 0.5 - 15.5) / 24))
        since = np.sort(np.interp(rng.random(n), np.append(0, busy / busy[-1]), np.arange(25)))
        mean = self._mean_amount[shopper]
        amount = rng.normal(mean, mean / 2)
        amount = np.round(np.where(amount < 0, rng.random(n) * 2 * mean, amount), 2)
        fraud = rng.random(n) < 0.008
        again = rng.random(n) < 0.12
        return Arrivals(
            contexts=Contexts(
                amount=np.asarray(amount, dtype=np.float64),
                hour=np.minimum(since.astype(np.int64), 23),
                issuer=issuer_of_cards(self.world, self._cards["issuer"][shopper], day),
                scheme=self._cards["scheme"][shopper],
                device=np.where(rng.random(n) < self._cards["app"][shopper], 0, 1),
                last_decline=np.where(again, np.where(rng.random(n) < 0.8, 1, 2), 0),
                earlier_attempts=np.where(again, np.minimum(rng.geometric(0.6, n), 12), 0),
                has_token=self._cards["token"][shopper],
                low_value_count=np.minimum(rng.geometric(0.35, n) - 1, 8),
                risk=np.where(fraud, rng.beta(2, 2, n), rng.beta(0.3, 20, n)),
                chance=rng.random(n),
            ),
            number=day * 10_000_000 + np.arange(n),
            shopper=shopper,
            time_ms=plan.start_ms + day * DAY_MS + (since * HOUR_MS).astype(np.int64),
            luck=rng.random((n, 4)),
        )

    def days(self, first: int, end: int) -> Arrivals:
        """Return the payments of days `[first, end)`."""
        return concatenated([self.day(day) for day in range(first, end)])

    def week(self, week: int) -> Arrivals:
        """Return the payments of week `week` (from 1)."""
        return self.days(7 * (week - 1), 7 * week)

    def truth(self, arrivals: Arrivals) -> Floats:
        """Return `[n, K]` P(authorised | context, action) at the time of each payment, eligible or not."""
        plan, out = self.plan, np.empty((len(arrivals), len(codes())))
        starts = [plan.start_ms + day * DAY_MS for day, _ in self._history[1:]]
        for part in blocks(len(arrivals)):
            some = arrivals.take(part)
            edges = [0, *(int(at) for at in np.searchsorted(some.time_ms, starts)), len(some)]
            value = np.concatenate(
                [
                    payments.probability(some.contexts.take(slice(first, end)))
                    for (_, payments), first, end in zip(self._history, edges, edges[1:], strict=False)
                    if end > first
                ]
            )
            for shock in plan.shocks:
                hit = np.ix_(shock.concerns(some, plan.start_ms), shock.family)
                value[hit] *= 1 - shock.declined
            out[part] = value
        return out

    def best(self, arrivals: Arrivals, truth: Floats | None = None) -> Floats:
        """Return `[n]` the highest probability among the eligible actions."""
        truth = self.truth(arrivals) if truth is None else truth
        return np.asarray(np.where(arrivals.eligible, truth, -1.0).max(axis=1))


def concatenated(parts: list[Arrivals]) -> Arrivals:
    """Concatenate payments in the given order."""
    return Arrivals(
        contexts=Contexts(
            **{
                column.name: np.concatenate([getattr(part.contexts, column.name) for part in parts])
                for column in fields(Contexts)
            }
        ),
        number=np.concatenate([part.number for part in parts]),
        shopper=np.concatenate([part.shopper for part in parts]),
        time_ms=np.concatenate([part.time_ms for part in parts]),
        luck=np.concatenate([part.luck for part in parts]),
    )


def blocks(n: int) -> Iterator[slice]:
    """Return slices of `n` rows that are small enough for tables over all actions on small machines."""
    return (slice(start, min(start + _BLOCK, n)) for start in range(0, n, _BLOCK))


def _stream(world: WorldSpec, which: int, shoppers: int) -> Floats:
    """Return `[shoppers]` traits. A shopper's traits do not depend on the number of shoppers."""
    return np.random.default_rng([world.seed, which]).random(shoppers)
