"""Logs to ship, a sink in memory, and the records that a sink must hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from logs import write_segment
from servers import environment
from waiting import PATIENCE

from scorer.log import LogReader
from scorer.log.segments import segment_files
from scorer.log.shipped.position import ShipPosition
from scorer.ship.batch import Batch
from scorer.v1.log_pb2 import (
    DecisionRecord,
    DeliveryRecord,
    LaneTableRecord,
    LogRecord,
    ObservationRecord,
    OutcomeRecord,
    RecoveryRecord,
    SealedFeatures,
    TokenClaims,
    WithdrawnRecord,
)
from scorer.v1.scoring_pb2 import AppliedRules, FiredRule, ListRead, OutcomeSource, Reason

SERVER = "scorer-0"
NOON_US = 1_793_534_400_000_000
"""2026-11-01T12:00:00Z."""

Key = tuple[str, str, int]
"""Server, segment and sequence of a record."""


def decision(number: int, **other: Any) -> bytes:
    """A score; `number` makes its id and its time, one second apart. Each third one has rules."""
    values = {
        "decision_id": f"d{number}",
        "checkpoint": "fraud.checkout",
        "lane": "live",
        "lane_table": 3,
        "bundle": bytes(range(32)),
        "decided_at_us": NOON_US + number * 1_000_000,
        "entity": f"card-{number % 7}",
        "features": [number / 8, float("nan")],
        "schema_fingerprint": 0xFEDC_BA98_7654_3210,
        "margin": -1.5,
        "score": 0.25,
        "decision": "approve",
        "exec_us": 12,
    }
    later = _later(number) if number % 3 == 0 else {}
    return LogRecord(decision=DecisionRecord(**values | later | other)).SerializeToString()


def _later(number: int) -> dict[str, Any]:
    """The fields of decisions that later versions of the log have added."""
    return {
        "rules": AppliedRules(
            fired=[FiredRule(id="limit", reason="R07"), FiredRule(id=f"rule-{number % 2}")],
            score=0.6,
            queue="level_2",
            unknown=1,
            errors=2,
            conflicts=3,
            lists=[ListRead(name="cards", version=4, digest=bytes(32))],
        ),
        "feature_reasons": [Reason(code="R01", feature="amount", contribution=0.5, direction=1)],
        "linked_checkpoint": "action.authorise",
        "features_defaulted": "late",
        "stated_features": [1],
        "features_at_us": NOON_US,
        "faulted_functions": ["velocity"],
    }


def action(number: int, **other: Any) -> bytes:
    """An action of three, of which two were eligible."""
    values = {
        "checkpoint": "action.authorise",
        "margin": 0.0,
        "score": 0.0,
        "decision": "",
        "eligible_mask": b"\x05",
        "pmf": [0.75, 0.0, 0.25],
        "action_index": 2,
        "action": "3ds",
        "propensity": 0.25,
        "expected_reward": 0.5,
        "withheld": [1],
        "sealed": SealedFeatures(positions=[1], key_id=9, number=number, ciphertext=b"secret"),
        "reasons": ["velocity", "amount"],
        "requested_mask": b"\x06" if number % 3 == 0 else b"",
    }
    return decision(number, **values | other)


def outcome(number: int, **other: Any) -> bytes:
    """An outcome of the decision with the same number."""
    values = {
        "checkpoint": "fraud.checkout",
        "decision_id": f"d{number}",
        "kind": "fraud",
        "value": 1.0,
        "received_at_us": NOON_US + number * 1_000_000,
        "occurred_at_ms": NOON_US // 1000,
        "proof": 3,
        "token": TokenClaims(index=4, propensity=0.5),
        "source": OutcomeSource(kind=1 + number % 4, id=f"feed-{number}" if number % 2 else ""),
    }
    return LogRecord(outcome=OutcomeRecord(**values | other)).SerializeToString()


def observation(number: int, **other: Any) -> bytes:
    """An observation of the decision with the same number."""
    observed = LogRecord.FromString(decision(number, lane="shadow")).decision
    values = {
        "decision": observed,
        "live_lane": "live",
        "live_bundle": bytes(32),
        "live_margin": -1.0,
        "live_score": 0.3,
        "live_decision": "review",
        "live_exec_us": 11,
        "absent_features": [1],
        "lag_us": 40,
        "answered_at_us": NOON_US + number * 1_000_000,
    }
    return LogRecord(observation=ObservationRecord(**values | other)).SerializeToString()


def withdrawal(sequence: int) -> bytes:
    """A withdrawal of an earlier record."""
    record = WithdrawnRecord(sequence=sequence, checkpoint="fraud.checkout", decision_id="d1")
    return LogRecord(withdrawn=record).SerializeToString()


def every_kind() -> list[bytes]:
    """One record of each kind, and one of a newer version."""
    return [
        decision(1),
        action(2),
        outcome(1),
        observation(1),
        withdrawal(1),
        LogRecord(delivery=DeliveryRecord(checkpoint="fraud.checkout", decision_id="d1", at_us=NOON_US))
        .SerializeToString(),
        LogRecord(lane_table=LaneTableRecord(version=3, since_us=NOON_US, table="{}")).SerializeToString(),
        LogRecord(recovery=RecoveryRecord(at_us=NOON_US, finding="torn tail")).SerializeToString(),
        b"\x7a\x02\x08\x01",  # field 15, which this version has no message for
    ]  # fmt: skip


def write_log(directory: Path, sizes: Sequence[int], *, sealed: bool = True) -> Path:
    """A log with segments of the given numbers of records, of mixed kinds, the last one open."""
    directory.mkdir(exist_ok=True)
    first = 1
    for at, size in enumerate(sizes):
        payloads = [mixed(sequence) for sequence in range(first, first + size)]
        is_last = at == len(sizes) - 1
        write_segment(directory, at + 1, first, payloads, sealed=sealed and not is_last)
        first += size
    (directory / "LOCK").touch()
    return directory


def mixed(sequence: int) -> bytes:
    """The record with a sequence in `write_log`: mostly decisions, some of each other kind."""
    if sequence % 5 == 0:
        return outcome(sequence - 1)
    if sequence % 11 == 0:
        return observation(sequence - 1)
    if sequence % 17 == 0:
        return withdrawal(sequence - 1)
    return action(sequence) if sequence % 3 == 0 else decision(sequence)


def keys_of(log: Path, server: str = SERVER) -> Counter[Key]:
    """What a sink must hold: every record of a log once."""
    segments = segment_files(log)
    return Counter(
        (server, next(one.name for one in segments if one.first <= sequence), sequence)
        for sequence, _ in LogReader(log).payloads()
    )


class MemorySink:
    """A sink in memory that outlives the shipper, like a store on another machine.

    Args:
        fail: Called with the name of each step before it; it may raise.
    """

    name = "memory"

    def __init__(self, fail: Any = None, name: str = "memory") -> None:
        self.name = name
        self.rows: Counter[Key] = Counter()
        self.payloads: dict[Key, bytes] = {}
        self.position: ShipPosition | None = None
        self.commits = 0
        self._fail = fail or (lambda _: None)

    def open(self) -> ShipPosition | None:
        self._fail("open")
        return self.position

    def deliver(self, batch: Batch) -> None:
        self._fail("before")
        for run, part in batch.slices():
            for sequence, payload in zip(batch.sequences[part], batch.payloads[part], strict=True):
                self.rows[batch.server, run.name, sequence] += 1
                self.payloads[batch.server, run.name, sequence] = payload
        self.position = batch.end
        self.commits += 1
        self._fail("after")

    def upkeep(self) -> str:
        self._fail("upkeep")
        return ""

    def finish(self) -> str:
        return ""

    def close(self) -> None:
        pass


def delta_rows(url: str, options: Mapping[str, str] | None = None, columns: Sequence[str] = ()) -> list[Any]:
    """The rows of all tables of a Delta sink, as dicts with their table's name."""
    from deltalake import DeltaTable

    from scorer.log.shipped.schema import SCHEMAS

    found = []
    for name in SCHEMAS:
        table = DeltaTable(f"{url}/{name}", storage_options=dict(options or {}))
        rows = table.to_pyarrow_table(columns=list(columns) or None)
        found += [{"table": name, **row} for row in rows.to_pylist()]
    return found


def delta_keys(url: str, options: Mapping[str, str] | None = None) -> Counter[Key]:
    """What the tables of a Delta sink hold."""
    rows = delta_rows(url, options, ("server", "segment", "sequence"))
    return Counter((row["server"], row["segment"], row["sequence"]) for row in rows)


class ShipperProcess:
    """A process `scorer ship`. Its lines are in a file, which does not block it."""

    def __init__(self, directory: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.output = directory / f"ship-{os.urandom(4).hex()}.txt"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "scorer.cli", "ship", *arguments],
                cwd=directory,
                env=environment(**(env or {})),
                stdout=output,
                stderr=output,
            )

    @property
    def text(self) -> str:
        return self.output.read_text()

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> int:
        """Ask it to end after the present delivery; return its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.wait()

    def wait(self, seconds: float = 2 * PATIENCE) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"did not end\n{self.text}") from None


@contextmanager
def shipper(
    directory: Path, *arguments: str, env: Mapping[str, str] | None = None
) -> Iterator[ShipperProcess]:
    """A shipper that is ended with the block."""
    started = ShipperProcess(directory, *arguments, env=env)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.kill()


def write_settings(directory: Path, **sections: Mapping[str, Any]) -> Path:
    """A `ship.toml` with a short interval and no listener; each section can be added to."""
    values: dict[str, dict[str, Any]] = {
        "ship": {
            "log": "decisions",
            "server": SERVER,
            "flush_seconds": 0.05,
            "metrics_listen": "off",
            "retry_seconds": 60.0,
        }
    }
    for name, section in sections.items():
        values.setdefault(name, {}).update(section)
    path = directory / "ship.toml"
    path.write_text(
        "".join(
            f"[{name}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in section.items())
            for name, section in values.items()
        )
    )
    return path


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {json.dumps(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)
