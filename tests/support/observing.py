"""A platform's reports on a real log: bundles, settings, database, and logs of servers that tests write."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bundles import rows as contexts
from fleet import FakeFleet
from logs import write_segment

from scorer.bundle import Bundle, read_manifest
from scorer.log.source.indexed import IndexedLogs
from scorer.log.source.records import RecordSource
from scorer.release.access import Access
from scorer.release.fleet import Member
from scorer.release.fleet.logs import log_directories
from scorer.release.model import Actor, ChangeKind, ChangeRequest, ChangeState, GateSpec
from scorer.release.readout import Readouts
from scorer.release.settings import PlatformFile
from scorer.release.store import Store, micros
from scorer.release.store import tables as t
from scorer.release.timeseries import MetricsOverTime
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, ObservationRecord, OutcomeRecord

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
ADMIN = Actor("root", admin=True)


@dataclass
class Log:
    """The log directory of a server, to which tests append segments."""

    path: Path
    sequence: int = 1
    number: int = 1

    def append(self, records: Sequence[LogRecord], *, sealed: bool = True) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        payloads = [one.SerializeToString() for one in records]
        log = uuid.uuid5(uuid.NAMESPACE_URL, self.path.name).bytes
        write_segment(self.path, self.number, self.sequence, payloads, sealed=sealed, log=log)
        self.number += 1
        self.sequence += len(records)


class LocalBundles:
    """Implements `Bundles.local` over directories."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = {read_manifest(path).digest: path for path in paths}

    def local(self, digest: str) -> Path:
        return self._paths[digest]


@dataclass
class World:
    """One checkpoint, one or two servers, and one change request."""

    root: Path
    live: Path
    own: Path
    checkpoint: str = "fraud.checkout"
    servers: Sequence[str] = ("live-1",)
    now: datetime = START + timedelta(hours=1)
    logs: dict[str, Log] = field(default_factory=dict)
    source_of: Callable[[World, Path], RecordSource] | None = None
    """Returns the source of the records with an index in a file; None: the directories are the source."""

    def __post_init__(self) -> None:
        self.logs = {name: Log(self.root / "logs" / name) for name in self.servers}
        self.bundles = {"live": Bundle.load(self.live), "own": Bundle.load(self.own)}
        self.settings = PlatformFile.model_validate(
            {
                "platform": {"data_dir": str(self.root / "data"), "registry": str(self.root / "registry")},
                "checkpoints": {self.checkpoint: {"alias": "fraud@live", "p99_ms": 5.0}},
            }
        )
        self.store = Store(f"sqlite:///{self.root / 'platform.sqlite'}")
        self.access = Access(self.store)
        self.access.create_project(ADMIN, "payments", "Payments")
        members = [Member(name, "", "live", self.logs[name].path) for name in self.servers]
        self.fleet = FakeFleet(
            members,
            checkpoints={self.checkpoint: "score"},
            answer={self.checkpoint: self.bundles["live"].digest},
        )
        self.change = self.insert_change()
        self.local = LocalBundles([self.live, self.own])
        self.readouts = self.new_collector()

    def new_collector(self) -> Readouts:
        """Return the collector of a new process, with the rollups that it writes."""
        source = self.new_source("data/decisions.sqlite")
        self.metrics = MetricsOverTime(
            self.settings,
            self.store,
            self.access,
            self.fleet,
            source,
            self.local,  # type: ignore[arg-type]
            now=lambda: self.now,
        )
        return Readouts(
            self.settings,
            self.store,
            self.access,
            self.fleet,
            source,
            self.local,  # type: ignore[arg-type]
            now=lambda: self.now,
            rollups=self.metrics.ledger,
        )

    def new_source(self, index: str) -> RecordSource:
        """Return the source of the records, with its index in a file below the root."""
        if self.source_of is not None:
            return self.source_of(self, self.root / index)
        return IndexedLogs(lambda: log_directories(self.fleet), self.root / index)

    def insert_change(self, *, gates: tuple[GateSpec, ...] = ()) -> ChangeRequest:
        change = ChangeRequest(
            id="cr-000001",
            project="payments",
            kind=ChangeKind.TEST,
            checkpoint=self.checkpoint,
            bundle=self.bundles["own"].digest,
            bundle_name="fraud",
            title="A test",
            state=ChangeState.OBSERVING,
            step="",
            created_by="ada",
            created_at=START,
            updated_at=START,
            version=1,
            minutes=60,
            since=START,
            gates=gates,
        )
        names = {column.name for column in t.changes.columns}
        values = {name: getattr(change, name) for name in ChangeRequest.__slots__ if name in names}
        values |= {"kind": "test", "state": "observing", "stages": [], "gates": [], "authors": ["ada"]}
        with self.store.write() as connection:
            connection.execute(t.users.insert().values(name="ada", admin=False, created_at=START))
            connection.execute(t.changes.insert().values(**values))
        return change

    def release(self) -> None:
        with self.store.write() as connection:
            connection.execute(t.changes.update().values(state=ChangeState.RELEASED.value))

    def records(self, count: int, *, first: int = 0, step_us: int = 100_000, **how: Any) -> list[LogRecord]:
        """Return answers of the live bundle with observations of the change's lane and the A/A control."""
        features = contexts(count, seed=1000 + first)
        live, own = (self.bundles[name].score(features) for name in ("live", "own"))
        records = []
        for row in range(count):
            at = micros(START) + (first + row) * step_us
            answer = self.decision("live", "live", first + row, at, features[row], live, row)
            records.append(LogRecord(decision=answer))
            for lane, name, scores in (("cr-000001", "own", own), ("aa", "live", live)):
                seen = self.decision(name, lane, first + row, at + 900, features[row], scores, row)
                records.append(LogRecord(observation=self.observation(seen, answer)))
        return records

    def decision(
        self, name: str, lane: str, number: int, at: int, features: Any, scores: Any, row: int
    ) -> DecisionRecord:
        bundle = self.bundles[name]
        return DecisionRecord(
            decision_id=f"payment-{number:06}",
            checkpoint=self.checkpoint,
            lane=lane,
            bundle=bytes.fromhex(bundle.digest.removeprefix("sha256:")),
            decided_at_us=at,
            features=features.tolist(),
            margin=float(scores.margins[row]),
            score=float(scores.scores[row]),
            decision=bundle.labels[int(scores.bands[row])],
            data_load_us=20 + number % 7,
            exec_us=200 + number % 50,
        )

    @staticmethod
    def observation(seen: DecisionRecord, answer: DecisionRecord) -> ObservationRecord:
        return ObservationRecord(
            decision=seen,
            live_lane=answer.lane,
            live_bundle=answer.bundle,
            live_margin=answer.margin,
            live_score=answer.score,
            live_decision=answer.decision,
            live_data_load_us=answer.data_load_us,
            live_exec_us=answer.exec_us,
            lag_us=900,
            answered_at_us=answer.decided_at_us,
        )

    def outcome(
        self,
        number: int,
        value: float,
        *,
        kind: str = "fraud",
        revision: int = 0,
        proof: int = 0,
        received_at_us: int = 0,
    ) -> LogRecord:
        return LogRecord(
            outcome=OutcomeRecord(
                checkpoint=self.checkpoint,
                decision_id=f"payment-{number:06}",
                kind=kind,
                value=value,
                revision=revision,
                proof=proof,  # type: ignore[arg-type]
                received_at_us=received_at_us,
            )
        )


def files(root: Path) -> dict[str, bytes]:
    """Return the bytes of every part by its path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*.parquet"))}
