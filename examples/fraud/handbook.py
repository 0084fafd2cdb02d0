"""The model of the handbook's transactions: its features, settings and table, for `scorer learn fraud`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from examples.columns import column
from examples.fraud.behaviour import BEHAVIOUR, behaviour
from examples.fraud.features import DELAY_DAYS
from examples.fraud.transactions import Transactions
from scorer.learn.fraud.settings import FraudSettings
from scorer.learn.fraud.task import ScoreTask

NAMES: Final = ("amount", *BEHAVIOUR)
WARM_UP_DAYS: Final = 21
"""Days at the beginning of the data that are not used for training, because their histories are too short."""
TASK: Final = ScoreTask(
    "fraud-handbook",
    tuple(
        column(name) if name in {"amount_above_mean", "amount_deviation"} else column(name, minimum=0.0)
        for name in NAMES
    ),
)
_RISING: Final = ("amount", "customer_unusual", "customer_excess", "customer_fraud", "terminal_plain",
                  "terminal_fraud_run")  # fmt: skip
SETTINGS: Final = FraudSettings.model_validate(
    {
        "trees": 300,
        "depth": 4,
        "learning_rate": 0.05,
        "min_child_weight": 5.0,
        "subsample": 0.8,
        "colsample": 0.5,
        "l2": 5.0,
        "increasing": [name for name in NAMES if name.startswith(_RISING)],
        "decreasing": ["terminal_days_since_plain_fraud"],
        "delay_days": DELAY_DAYS,
        # The book leaves out customers with a fraud in its week of training.
        "blocked_days": 7,
        "columns": {"id": "transaction", "entity": "customer"},
    }
)


def features_of(transactions: Transactions) -> npt.NDArray[np.float32]:
    """Return `[n, len(NAMES)]` features of every transaction, as known at its time."""
    amount = transactions.amount.astype(np.float32)[:, None]
    return np.concatenate([amount, behaviour(transactions)], axis=1)


def write_table(transactions: Transactions, rows: npt.NDArray[np.float32], path: Path) -> None:
    """Write the Parquet table of `scorer learn fraud train`, without the days of warm-up.

    Args:
        transactions: All transactions.
        rows: Their features, from `features_of`.
        path: File to write.
    """
    used = np.flatnonzero(transactions.day >= WARM_UP_DAYS)
    columns: dict[str, npt.NDArray[np.generic]] = {
        "transaction": transactions.ids[used],
        "decided_at_ms": transactions.time_ms[used],
        "label": transactions.fraud[used].astype(np.int8),
        "customer": transactions.customer[used],
    }
    columns |= {name: rows[used, at] for at, name in enumerate(NAMES)}
    pq.write_table(pa.table(columns), path)
