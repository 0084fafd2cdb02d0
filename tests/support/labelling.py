"""Decisions of a score checkpoint with late outcomes: a source in memory, and records of a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scorer.bundle import Feature, inspect
from scorer.log import BundleShelf
from scorer.log.proof import KNOWN
from scorer.log.reading import LogFinding
from scorer.log.source import rows as source_rows
from scorer.log.source.interface import ReadPosition, SourceBatch, SourceQuery
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, OutcomeRecord

POINT = "fraud.checkout"
DAY = 86_400_000
HOUR = 3_600_000
# A Monday.
START = 1_767_571_200_000
FEATURES = (
    Feature(name="amount"),
    Feature(name="country", type="category", categories=["DE", "FR"]),
    Feature(name="night", type="flag"),
)
EMPTY_SHELF = BundleShelf([], required=False)


@dataclass
class MemoryPass:
    """One pass over the batches of a log in memory."""

    batches: Sequence[SourceBatch]
    findings: Sequence[LogFinding] = ()
    continued: bool = False
    erased: bool = False
    position: ReadPosition = field(default_factory=lambda: ReadPosition("memory", 0, ""))
    since_us: int = 0
    first_sequence: int = 0
    segments: dict[str, bool] = field(default_factory=dict)

    def __iter__(self) -> Iterator[SourceBatch]:
        return iter(self.batches)


@dataclass
class MemoryLog:
    """The log of one server in memory."""

    name: str
    batches: Sequence[SourceBatch]
    erasures: str = ""

    def read(self, query: SourceQuery, after: Any = None, advance: Any = None) -> MemoryPass:
        return MemoryPass(self.batches)


@dataclass
class MemorySource:
    """Logs in memory."""

    logs: Sequence[MemoryLog]


def decisions(names: Sequence[str], time_ms: np.ndarray, first: int = 0, **columns: Any) -> SourceBatch:
    """Return decisions as a batch of a source. `columns` replaces columns."""
    n = len(names)
    values: dict[str, Any] = {
        "sequence": np.arange(first, first + n),
        "decision_id": list(names),
        "decided_at_us": np.asarray(time_ms, np.int64) * 1000,
        "bundle": ["sha256:b"] * n,
        "fallback_source": [""] * n,
        "schema_fingerprint": np.zeros(n, np.uint64),
        "action": [""] * n,
        "action_index": np.zeros(n, np.int64),
        "propensity": np.zeros(n),
        "entity": [""] * n,
        "lane": ["live"] * n,
        "features": [[]] * n,
        "eligible": [[]] * n,
        "pmf": [[]] * n,
        "withheld": [[]] * n,
        "decision": ["approve"] * n,
        "rules": [[]] * n,
        **columns,
    }
    return SourceBatch(POINT, "decisions", source_rows.table(values, source_rows.DECISIONS))


def outcomes(
    names: Sequence[str], kinds: Sequence[str], values: Any, known_ms: Any, first: int = 0, **columns: Any
) -> SourceBatch:
    """Return reports as a batch of a source. `columns` replaces columns."""
    n = len(names)
    rows: dict[str, Any] = {
        "sequence": np.arange(first, first + n),
        "decision_id": list(names),
        "kind": list(kinds),
        "revision": np.zeros(n, np.int64),
        "value": np.asarray(values, np.float64),
        "occurred_at_ms": np.zeros(n, np.int64),
        "received_at_us": np.asarray(known_ms, np.int64) * 1000,
        "proof": np.full(n, KNOWN, np.int8),
        "source": np.zeros(n, np.int8),
        "source_id": [""] * n,
        "token_decided_at_ms": pa.nulls(n, pa.int64()),
        "token_bundle": pa.nulls(n, source_rows.CODED),
        "token_index": pa.nulls(n, pa.int64()),
        "token_propensity": pa.nulls(n, pa.float64()),
        **columns,
    }
    return SourceBatch(POINT, "outcomes", source_rows.table(rows, source_rows.OUTCOMES))


class ScoreRecords:
    """Makes log records of one score bundle's decisions."""

    def __init__(self, bundle: Path) -> None:
        info = inspect(bundle)
        self.digest = bytes.fromhex(info.digest.removeprefix("sha256:"))
        self.fingerprint = int(info.schema_fingerprint, 16)

    def decision(self, name: str, hour: float, features: Sequence[float], **other: Any) -> bytes:
        fields: dict[str, Any] = {
            "decision_id": name,
            "checkpoint": POINT,
            "lane": "live",
            "bundle": self.digest,
            "decided_at_us": round((START + hour * HOUR) * 1000),
            "features": list(features),
            "schema_fingerprint": self.fingerprint,
        }
        return LogRecord(decision=DecisionRecord(**{**fields, **other})).SerializeToString()


def report(name: str, hour: float, kind: str, value: float = 1.0, revision: int = 0, **other: Any) -> bytes:
    """Return the record of an outcome that was received at an hour after `START`."""
    fields: dict[str, Any] = {
        "checkpoint": POINT,
        "decision_id": name,
        "kind": kind,
        "value": value,
        "revision": revision,
        "received_at_us": round((START + hour * HOUR) * 1000),
    }
    return LogRecord(outcome=OutcomeRecord(**{**fields, **other})).SerializeToString()
