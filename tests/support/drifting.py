"""Decisions and outcomes of a score checkpoint by the hour, for tests of drift."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from scorer.bundle.statistics import distribution
from scorer.drift.counting import HOUR_US, BundleFacts, CheckpointPlan
from scorer.drift.monitor import Monitor
from scorer.drift.settings import DetectionSettings, DriftSettings
from scorer.drift.state import DriftState
from scorer.log.scanning import Entry
from scorer.v1.log_pb2 import DecisionRecord, OutcomeRecord

CHECKPOINT = "fraud.checkout"
BUNDLE = b"\x07" * 32
DIGEST = "sha256:" + BUNDLE.hex()
START = 490_000 * HOUR_US
ISSUERS = ("north", "south", "east")
PLAN = CheckpointPlan(
    {"score": "fraud", "action": "authorised"},
    segments=("issuer",),
    matured_hours={"score": 24.0, "action": 1.0},
)
SETTINGS = DriftSettings(
    segments=("issuer",),
    reference_rows=500,
    detection=DetectionSettings(windows_hours=(24,), weeks=2, history_days=7, least_rows=80),
)


def write_bundle(folder: Path) -> Path:
    """Write a directory with a schema of an amount and an issuer, and a reference of scores."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.json").write_text(
        '{"features": [{"name": "amount"}, {"name": "issuer", "type": "category", "categories": '
        f"{list(ISSUERS)}}}]}}".replace("'", '"')
    )
    own = distribution(np.random.default_rng(1).beta(1, 20, 20_000)).model_dump_json()
    (folder / "reference.json").write_text(f'{{"training": {own}, "validation": {own}}}')
    return folder


@dataclass
class FakeLog:
    """A log in memory.

    Attributes:
        entries: Its records, whose sequences ascend.
        name: Name of the server.
    """

    entries: list[Entry] = field(default_factory=list)
    name: str = "scorer-1"
    identities: Sequence[str] = ("0" * 32,)

    def records(self, identity: str, start: int) -> Iterator[Entry]:
        assert identity in self.identities
        return iter([one for one in self.entries if one.sequence >= start])

    def append(self, kind: str, record: object) -> None:
        self.entries.append(Entry(len(self.entries) + 1, kind, record))


@dataclass
class Change:
    """A change of the payments from a time on.

    Attributes:
        day: First day of the change.
        amount: Factor of the amounts.
        missing: Share of missing amounts.
        fraud: Share of additional frauds among the payments of one issuer.
    """

    day: float = 1e9
    amount: float = 1.0
    missing: float = 0.0
    fraud: float = 0.0


def fill(log: FakeLog, days: int, change: Change, *, per_hour: int = 12, seed: int = 3) -> None:
    """Append the payments of some days with their outcomes, which are received within a day."""
    random = np.random.default_rng(seed)
    waiting: list[tuple[int, OutcomeRecord]] = []
    for hour in range(days * 24):
        for number in range(per_hour):
            at = START + hour * HOUR_US + number * (HOUR_US // per_hour)
            is_later = hour >= change.day * 24
            amount = float(np.exp(random.normal(3, 1))) * (change.amount if is_later else 1)
            if is_later and random.random() < change.missing:
                amount = float("nan")
            issuer = int(random.integers(len(ISSUERS)))
            score = float(random.beta(1, 20))
            record = DecisionRecord(
                decision_id=f"p{hour}-{number}",
                checkpoint=CHECKPOINT,
                lane="live",
                bundle=BUNDLE,
                decided_at_us=at,
                features=[amount, issuer],
                score=score,
                decision="approve" if score < 0.2 else "decline",
            )
            log.append("decision", record)
            rate = score + (change.fraud if is_later and issuer == 1 else 0)
            if random.random() < rate:
                received = at + int(random.integers(1, 20)) * HOUR_US
                waiting.append((received, outcome(record.decision_id, received)))
        due = [one for at, one in waiting if at < START + (hour + 1) * HOUR_US]
        waiting = [one for one in waiting if one[0] >= START + (hour + 1) * HOUR_US]
        for one in due:
            log.append("outcome", one)


def outcome(decision_id: str, received: int, *, value: float = 1.0, revision: int = 0) -> OutcomeRecord:
    return OutcomeRecord(
        checkpoint=CHECKPOINT,
        decision_id=decision_id,
        kind="fraud",
        value=value,
        revision=revision,
        received_at_us=received,
    )


def monitor_of(
    folder: Path, logs: Sequence[FakeLog], now: int, *, settings: DriftSettings = SETTINGS, batch: int = 5_000
) -> Monitor:
    """Return a monitor with its state in a folder."""
    bundle = write_bundle(folder / "bundle")
    return Monitor(
        DriftState(folder / "drift.sqlite"),
        lambda: logs,  # type: ignore[arg-type, return-value]
        lambda: {CHECKPOINT: PLAN},
        BundleFacts(lambda digest: bundle if digest == DIGEST else folder / "absent"),
        settings,
        now=lambda: now,
        batch=batch,
    )
