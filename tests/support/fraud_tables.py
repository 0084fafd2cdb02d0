"""Small labelled tables of a score checkpoint, in the layout of `scorer learn label` and in a plain one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scorer.bundle import Feature
from scorer.learn.fraud.settings import FraudSettings
from scorer.learn.fraud.task import ScoreTask

DAY_MS = 86_400_000
FIRST_DAY = 20_000
TASK = ScoreTask(
    "fraud-test",
    (
        Feature(name="amount", minimum=0.0, maximum=1e6),
        Feature(name="velocity", minimum=0.0),
        Feature(name="country", type="category", categories=["NL", "DE", "FR"]),
        Feature(name="noise"),
    ),
)
SMALL = FraudSettings.model_validate(
    {
        "trees": 30,
        "depth": 3,
        "learning_rate": 0.2,
        "threads": 1,
        "delay_days": 3,
        "baseline": "amount",
        "columns": {"entity": "customer"},
        "value": {"reviews_per_day": 5},
    }
)


def columns(rows: int = 6_000, days: int = 40, seed: int = 0) -> dict[str, np.ndarray]:
    """Return columns of payments in a random order, about 5 % of which are frauds with a high velocity."""
    random = np.random.default_rng(seed)
    amount = random.lognormal(3, 1, rows).round(2)
    velocity = random.exponential(1.0, rows)
    country = random.integers(0, 3, rows)
    odds = -6.0 + 0.004 * amount + 2.0 * velocity * (country != 1)
    label = (random.random(rows) < 1 / (1 + np.exp(-odds))).astype(np.int8)
    time_ms = (FIRST_DAY + random.random(rows) * days) * DAY_MS
    time_ms = time_ms.astype(np.int64)
    return {
        "decision_id": np.array([f"d{at}" for at in range(rows)]),
        "decided_at_ms": time_ms,
        "label": label,
        "label_weight": np.ones(rows),
        "label_known_ms": np.where(label == 1, time_ms + 2 * DAY_MS, 0),
        "customer": random.integers(0, 500, rows),
        "amount": amount.astype(np.float32),
        "velocity": velocity.astype(np.float32),
        "country": country.astype(np.float32),
        "noise": random.normal(size=rows).astype(np.float32),
    }


def write(path, given=None, **changes):
    """Write columns, with some of them replaced or (None) left out, and return the path."""
    table = {**(columns() if given is None else given), **changes}
    pq.write_table(pa.table({name: value for name, value in table.items() if value is not None}), path)
    return path
