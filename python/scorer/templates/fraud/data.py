"""Write synthetic payments with labels that mature: python data.py FILE."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS, DAYS = 12_000, 42
DAY_MS = 86_400_000
START_MS = 1_767_225_600_000
CHANNELS = ("app", "store", "web")


def payments(rows: int = ROWS, seed: int = 7) -> pa.Table:
    """Return payments in the order of time. Frauds are known after 1 to 6 days.

    Args:
        rows: Number of payments.
        seed: Seed of the random numbers.
    """
    random = np.random.default_rng(seed)
    time_ms = START_MS + np.sort(random.integers(0, DAYS * DAY_MS, rows))
    amount = np.round(random.gamma(1.5, 60.0, rows), 2)
    hour = time_ms // 3_600_000 % 24
    count = random.poisson(1.5, rows)
    is_new = random.random(rows) < 0.15
    channel = random.integers(0, len(CHANNELS), rows)
    # Two patterns that a linear model does not represent: stolen cards are tried with small amounts in the
    # web, and used at night from a new device.
    is_trial = (channel == 2) & (amount < 40) & (count >= 3)
    is_theft = is_new & (hour < 8) & (amount > 60)
    share = np.select([is_trial, is_theft], [0.6, 0.5], 0.004)
    is_fraud = random.random(rows) < share
    delay = np.where(is_fraud, random.uniform(1, 6, rows), 7)
    return pa.table(
        {
            "decision_id": [f"payment-{row}" for row in range(rows)],
            "decided_at_ms": time_ms,
            "customer": [f"customer-{one}" for one in random.integers(0, rows // 8, rows)],
            "amount": amount,
            "hour": hour,
            "payments_24h": count,
            "is_new_device": is_new,
            "channel": [CHANNELS[one] for one in channel],
            "label": is_fraud.astype(np.int8),
            "label_known_ms": time_ms + (delay * DAY_MS).astype(np.int64),
        }
    )


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(payments(), target)
