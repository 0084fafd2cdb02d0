"""A checkpoint with a decision log of several weeks, for comparisons of its versions by week."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from bundles import rows
from logs import write_segment
from platforms import SETTINGS
from versions import CHECKPOINT

from scorer.bundle import inspect
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, OutcomeRecord

CONFIGURED = SETTINGS.replace(
    'control = "127.0.0.1:1"', 'control = "127.0.0.1:1"\nlog = "live-1-log"'
).replace(
    f'[checkpoints."{CHECKPOINT}"]',
    f'[checkpoints."{CHECKPOINT}"]\nmatured_hours = 336\ncomparison.weeks = 8\ncomparison.positives = 3',
)
DAYS = 45


def write_log(folder: Path, bundle: Path) -> None:
    """Write payments of six and a half weeks until now, with a fraud report for some of them."""
    pick = np.random.default_rng(3)
    info, given = inspect(bundle), rows(1_500, seed=8)
    begin = datetime.now(UTC) - timedelta(days=DAYS)
    payloads = []
    for at, features in enumerate(given):
        decided = begin + timedelta(days=DAYS * at / len(given))
        record = DecisionRecord(
            decision_id=f"p{at}",
            checkpoint=CHECKPOINT,
            lane="live",
            bundle=bytes.fromhex(info.digest.removeprefix("sha256:")),
            decided_at_us=int(decided.timestamp() * 1e6),
            features=features.tolist(),
            schema_fingerprint=int(info.schema_fingerprint, 16),
            decision="approve",
        )
        payloads.append((decided, LogRecord(decision=record)))
        told = decided + timedelta(days=float(pick.uniform(1, 5)))
        if pick.random() < 0.05 + 0.2 * (features[0] > 50) and told < datetime.now(UTC):
            outcome = OutcomeRecord(
                checkpoint=CHECKPOINT,
                decision_id=f"p{at}",
                kind="fraud",
                value=1.0,
                received_at_us=int(told.timestamp() * 1e6),
            )
            payloads.append((told, LogRecord(outcome=outcome)))
    payloads.sort(key=lambda one: one[0])
    write_segment(folder, 0, 1, [one.SerializeToString() for _, one in payloads])
