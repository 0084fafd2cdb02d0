"""Input of the demo: transactions with their features, and the routing log if there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.demo.output import Output
from examples.demo.plan import DemoPlan, Paths
from examples.fraud.features import features
from examples.fraud.transactions import Transactions, read_transactions
from examples.routing_log import RoutingLog, read_routing
from examples.simulators.transactions import simulate_transactions


@dataclass(frozen=True)
class Data:
    """Input of the demo.

    Attributes:
        source: description of the source of the transactions.
        transactions: all of them.
        rows: `[n, 15]` features of the transactions.
        routing: the real routing log, if there is one.
    """

    source: str
    transactions: Transactions
    rows: npt.NDArray[np.float32]
    routing: RoutingLog | None

    def summary(self) -> dict[str, Any]:
        """Return the entry of summary.json."""
        table = self.transactions
        return {
            "source": self.source,
            "transactions": len(table),
            "first_day": table.date(0),
            "last_day": table.date(table.days - 1),
            "fraud_rate": float(table.fraud.mean()),
            "digest": table.digest(),
            "routing_attempts": len(self.routing) if self.routing else 0,
        }


def obtain(paths: Paths, plan: DemoPlan, seed: int, output: Output) -> Data:
    """Read or simulate the transactions, compute their features, read the routing log.

    Raises:
        DataError: a file cannot be read or lacks a column.
    """
    if paths.transactions is None:
        size = plan.simulated
        with output.busy("simulating transactions"):
            transactions = simulate_transactions(size, seed)
        source = f"simulated for {size.customers:,} customers and {size.terminals:,} terminals"
    else:
        with output.busy(f"reading {paths.transactions}"):
            transactions = read_transactions(paths.transactions)
        source = f"from {paths.transactions.name}"
    with output.busy("computing features"):
        rows = features(transactions)
    output.line(
        f"{len(transactions):,} transactions {source}, {transactions.date(0)} to"
        f" {transactions.date(transactions.days - 1)}, {transactions.fraud.mean():.2%} fraud,"
        " 15 features each"
    )
    routing = None
    if paths.routing is not None:
        routing = read_routing(paths.routing)
        output.line(
            f"{len(routing):,} payment attempts over {len(routing.providers)} providers from"
            f" {paths.routing.name}, {routing.success.mean():.1%} successful"
        )
    return Data(source, transactions, rows, routing)
