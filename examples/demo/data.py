"""The demo's input: transactions with their features, and the routing log if there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.demo.narrate import Narrator
from examples.demo.plan import DemoPlan, Places
from examples.fraud.features import features
from examples.fraud.transactions import Transactions, read_transactions
from examples.routing_log import RoutingLog, read_routing
from examples.simulators.transactions import simulate_transactions


@dataclass(frozen=True)
class Data:
    """The demo's input.

    Attributes:
        source: where the transactions come from, for people.
        transactions: all of them.
        rows: their features.
        routing: the real routing log, if there is one.
    """

    source: str
    transactions: Transactions
    rows: npt.NDArray[np.float32]
    routing: RoutingLog | None

    def summary(self) -> dict[str, Any]:
        """For summary.json."""
        made = self.transactions
        return {
            "source": self.source,
            "transactions": len(made),
            "first_day": made.date(0),
            "last_day": made.date(made.days - 1),
            "fraud_rate": float(made.fraud.mean()),
            "digest": made.digest(),
            "routing_attempts": len(self.routing) if self.routing else 0,
        }


def obtain(places: Places, plan: DemoPlan, seed: int, narrator: Narrator) -> Data:
    """Reads or simulates the transactions and computes their features; reads the routing log."""
    if places.transactions is None:
        size = plan.simulated
        with narrator.busy(
            f"simulated {size.customers:,} customers, {size.terminals:,} terminals, {size.days} days"
        ):
            transactions = simulate_transactions(size, seed)
        source = "simulated by this project"
    else:
        with narrator.busy(f"read {places.transactions}"):
            transactions = read_transactions(places.transactions)
        source = places.transactions.name
    narrator.say(
        f"{len(transactions):,} transactions, {transactions.date(0)} to"
        f" {transactions.date(transactions.days - 1)}, {transactions.fraud.mean():.2%} fraud"
    )
    with narrator.busy("15 features per transaction"):
        rows = features(transactions)
    routing = None
    if places.routing is not None:
        routing = read_routing(places.routing)
        narrator.say(
            f"{len(routing):,} payment attempts over {len(routing.providers)} providers from"
            f" {places.routing.name}, {routing.success.mean():.1%} successful"
        )
    return Data(source, transactions, rows, routing)
