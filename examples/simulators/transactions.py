"""Simulated card transactions with three kinds of fraud.

The simulation implements the method that the Fraud Detection Handbook describes: customers and terminals on a
map, purchases at nearby terminals, and frauds that are added afterwards. docs/simulators.md states every
distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from examples.fraud.transactions import DAY_MS, Transactions
from scorer.learn.errors import DataError

DAY_SECONDS = 86_400


@dataclass(frozen=True)
class TransactionPlan:
    """The plan of a simulation. The defaults of the distributions are the published ones.

    Attributes:
        customers: Number of customers.
        terminals: Number of terminals.
        days: Number of days.
        start: First day, YYYY-MM-DD.
        radius: Distance within which customers buy, on a 100 x 100 map.
        suspicious_amount: Every transaction above this amount is fraud (scenario 1).
        terminals_per_day: Number of terminals that are compromised each day (scenario 2).
        terminal_days: Number of days for which all their transactions are fraud.
        customers_per_day: Number of customers who are compromised each day (scenario 3).
        customer_days: Number of days in which a third of their transactions is fraud.
        amount_factor: Factor of the amounts of those transactions.
    """

    customers: int = 5_000
    terminals: int = 10_000
    days: int = 183
    start: str = "2018-04-01"
    radius: float = 5.0
    suspicious_amount: float = 220.0
    terminals_per_day: int = 2
    terminal_days: int = 28
    customers_per_day: int = 3
    customer_days: int = 14
    amount_factor: float = 5.0

    def __post_init__(self) -> None:
        for name, least in (
            ("customers", self.customers_per_day),
            ("terminals", self.terminals_per_day),
            ("days", 1),
        ):
            if getattr(self, name) < max(1, least):
                raise DataError(
                    f"simulation: {name} is {getattr(self, name)}; it must be at least {max(1, least)}"
                )
        if not self.radius > 0:
            raise DataError(f"simulation: radius is {self.radius}; it must be above 0")
        try:
            np.datetime64(self.start, "D")
        except ValueError as error:
            raise DataError(f'simulation: start "{self.start}" is not a date; write YYYY-MM-DD') from error


def simulate_transactions(plan: TransactionPlan, seed: int = 0) -> Transactions:
    """Simulate transactions. Equal plans and seeds give equal transactions.

    Args:
        plan: The plan of the simulation.
        seed: Seed of all random numbers.

    Raises:
        DataError: There is no transaction, for example because no customer has a terminal within the radius.
    """
    rng = np.random.default_rng(seed)
    customer_place = rng.uniform(0, 100, (plan.customers, 2))
    mean_amount = rng.uniform(5, 100, plan.customers)
    per_day = rng.uniform(0, 4, plan.customers)
    terminal_place = rng.uniform(0, 100, (plan.terminals, 2))
    near, first, count = _terminals_near(customer_place, terminal_place, plan.radius)

    # Customers without a terminal within the radius buy nothing.
    purchases = rng.poisson(per_day[:, None] * (count > 0)[:, None], (plan.customers, plan.days))
    customer = np.repeat(np.arange(plan.customers), purchases.sum(axis=1))
    day = np.repeat(np.tile(np.arange(plan.days), plan.customers), purchases.ravel())
    second = rng.normal(DAY_SECONDS / 2, 20_000, len(customer)).astype(np.int64)
    within = (second > 0) & (second < DAY_SECONDS)
    customer, day, second = customer[within], day[within], second[within]
    if len(customer) == 0:
        raise DataError("simulation: no transaction came out; raise customers, terminals, days or the radius")

    mean = mean_amount[customer]
    amount = rng.normal(mean, mean / 2)
    amount = np.asarray(np.round(np.where(amount < 0, rng.uniform(0, 2 * mean), amount), 2), dtype=np.float64)
    pick = (rng.random(len(customer)) * count[customer]).astype(np.int64)
    terminal = near[first[customer] + pick]

    time_ms = (np.datetime64(plan.start, "D").astype(np.int64) + day) * DAY_MS + second * 1000
    order = np.argsort(time_ms, kind="stable")
    customer, day, amount, terminal = customer[order], day[order], amount[order], terminal[order]
    scenario = _add_frauds(plan, rng, customer, terminal, day, amount)
    return Transactions(
        ids=np.arange(len(order)),
        time_ms=time_ms[order],
        customer=customer,
        terminal=terminal,
        amount=amount,
        fraud=(scenario > 0).astype(np.int64),
        scenario=scenario,
    )


def _terminals_near(
    customer_place: npt.NDArray[np.float64], terminal_place: npt.NDArray[np.float64], radius: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the terminals near all customers, one after the other, and each customer's start and count."""
    lists = []
    for place in np.array_split(customer_place, max(1, len(customer_place) // 256)):
        square = ((place[:, None, :] - terminal_place[None, :, :]) ** 2).sum(axis=2)
        who, which = np.nonzero(square < radius**2)
        lists.append((np.bincount(who, minlength=len(place)), which))
    count = np.concatenate([c for c, _ in lists])
    return np.concatenate([w for _, w in lists]), np.cumsum(count) - count, count


def _add_frauds(
    plan: TransactionPlan,
    rng: np.random.Generator,
    customer: npt.NDArray[np.int64],
    terminal: npt.NDArray[np.int64],
    day: npt.NDArray[np.int64],
    amount: npt.NDArray[np.float64],
) -> npt.NDArray[np.int64]:
    """Return the scenario of each transaction, and raise amounts in place.

    Later scenarios overwrite earlier ones, as in the published method.
    """
    scenario = np.zeros(len(customer), dtype=np.int64)
    scenario[amount > plan.suspicious_amount] = 1

    compromised = np.zeros((plan.terminals, plan.days), dtype=bool)
    for today in range(plan.days):
        chosen = rng.choice(plan.terminals, plan.terminals_per_day, replace=False)
        compromised[chosen, today : today + plan.terminal_days] = True
    scenario[compromised[terminal, day]] = 2

    # Rows by customer, in order of time for each customer.
    rows = np.argsort(customer, kind="stable")
    first = np.searchsorted(customer[rows], np.arange(plan.customers + 1))
    for today in range(plan.days):
        for chosen in rng.choice(plan.customers, plan.customers_per_day, replace=False):
            own = rows[first[chosen] : first[chosen + 1]]
            own = own[(day[own] >= today) & (day[own] < today + plan.customer_days)]
            third = rng.choice(own, len(own) // 3, replace=False)
            amount[third] = np.round(amount[third] * plan.amount_factor, 2)
            scenario[third] = 3
    return scenario
