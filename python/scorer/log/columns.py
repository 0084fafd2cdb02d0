"""Decisions and outcomes of one checkpoint as numpy columns, for millions of rows.

`scan` yields records one by one as Python objects, which takes several microseconds each. The functions here
decode a batch of records in Rust and keep only the fields that offline evaluation reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from os import PathLike, fspath
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from scorer.log.erasure import erased
from scorer.log.reading import Advance
from scorer.stats.arrays import Bools, Floats, Ints, Rows32

_RECORDS = 50_000
_BYTES = 32 << 20

Keys = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths, stored contiguously.

    Attributes:
        values: The values of all rows, ``[counts.sum()]``.
        counts: Number of values of each row, ``[n]``.
    """

    values: npt.NDArray[Any]
    counts: Ints

    def __len__(self) -> int:
        return len(self.counts)

    def take(self, rows: npt.NDArray[Any]) -> Ragged:
        """Return the rows that a boolean mask ``[n]`` or an array of positions selects."""
        at = np.flatnonzero(rows) if rows.dtype == bool else rows
        counts = self.counts[at]
        starts = np.concatenate([[0], np.cumsum(self.counts)])[at]
        first = np.concatenate([[0], np.cumsum(counts)[:-1]]) if len(counts) else np.zeros(0, np.int64)
        places = np.repeat(starts - first, counts) + np.arange(int(counts.sum()))
        return Ragged(self.values[places], counts)

    def matrix(self, width: int) -> npt.NDArray[Any]:
        """Return the rows as ``[n, width]``. Every row must have `width` values."""
        return self.values.reshape(-1, width)

    def texts(self) -> list[str]:
        """Return each row of bytes as a string."""
        whole, ends = self.values.tobytes(), np.cumsum(self.counts)
        return [whole[end - count : end].decode() for end, count in zip(ends, self.counts, strict=True)]


class Columns:
    """Base of dataclasses whose fields are columns of the same length: arrays, `Ragged`, or dicts of them."""

    def __len__(self) -> int:
        return len(getattr(self, fields(cast("Any", self))[0].name))

    def take(self, rows: npt.NDArray[Any]) -> Self:
        """Return the rows that a boolean mask ``[n]`` or an array of positions selects."""
        own = {one.name: getattr(self, one.name) for one in fields(cast("Any", self))}
        return type(self)(**{name: _taken(column, rows) for name, column in own.items()})


@dataclass(frozen=True)
class DecisionColumns(Columns):
    """Columns of decisions, ``[n]`` each.

    Attributes:
        sequence: Number of the record in its log.
        key: Hash of the decision's id. It is equal in all logs that this process reads, and differs between
            processes.
        at: Time of the decision in microseconds since the Unix epoch.
        bundle: Index into the batch's `bundles`.
        fingerprint: Fingerprint of the schema of the features.
        label: Index into the batch's `labels`: the decision's label, or the action's id.
        fallback: Whether a fallback answered.
        action: Position of the action in its bundle's catalogue.
        propensity: Probability of the action when it was drawn.
        features: Features as float32, in the order of the bundle's schema.
        pmf: Probabilities over the catalogue; empty for scores.
        eligible: Masks of eligible actions, as bytes.
        id: The decision's id, as bytes.
        entity: The entity, as bytes.
    """

    sequence: Keys
    key: Keys
    at: Ints
    bundle: npt.NDArray[np.uint32]
    fingerprint: Keys
    label: npt.NDArray[np.uint32]
    fallback: Bools
    action: npt.NDArray[np.uint32]
    propensity: Floats
    features: Ragged
    pmf: Ragged
    eligible: Ragged
    id: Ragged
    entity: Ragged


@dataclass(frozen=True)
class OutcomeColumns(Columns):
    """Columns of reported outcomes, ``[n]`` each.

    Attributes:
        sequence: Number of the record in its log.
        key: Hash of the decision's id, as in `DecisionColumns`.
        kind: Index into the batch's `kinds`.
        value: The reported value.
        revision: Revision of the report.
        proof: Value of `OutcomeProof`.
    """

    sequence: Keys
    key: Keys
    kind: npt.NDArray[np.uint32]
    value: Floats
    revision: npt.NDArray[np.uint32]
    proof: npt.NDArray[np.int32]


@dataclass(frozen=True)
class ColumnBatch:
    """Consecutive records of a log.

    Attributes:
        decisions: The decisions, without those of erased entities.
        outcomes: The reported outcomes, including those of decisions in other batches or logs.
        withdrawn: Sequences of withdrawn records. They precede this batch's end by at most
            `scorer.log.scanning.REACH` records, so they may belong to the previous batch.
        bundles: Digests that `decisions.bundle` refers to.
        labels: Labels and action ids that `decisions.label` refers to.
        kinds: Kinds of outcomes that `outcomes.kind` refers to.
    """

    decisions: DecisionColumns
    outcomes: OutcomeColumns
    withdrawn: Keys
    bundles: list[str]
    labels: list[str]
    kinds: list[str]


def scan_columns(
    directory: str | PathLike[str],
    checkpoint: str,
    *,
    start_sequence: int = 0,
    advance: Advance | None = None,
    records: int = _RECORDS,
) -> Iterator[ColumnBatch]:
    """Yield the decisions and outcomes of a checkpoint in the order of the log, in batches.

    The decisions and outcomes still contain the records that `withdrawn` lists. The caller must remove them
    after it has read all batches.

    Args:
        directory: The log's directory; a server may write to it at the same time.
        checkpoint: Return the records of this checkpoint.
        start_sequence: Sequence of the first record to return.
        advance: Called with the bytes read so far and the total bytes.
        records: Largest number of records of a batch, over all kinds and checkpoints.

    Raises:
        LogError: The directory is not a log, cannot be read, or has records of another program.
    """
    from scorer import bridge

    gone = erased(directory)
    reader = bridge.LogReader(fspath(directory), start_sequence)
    while (raw := reader.next_columns(checkpoint, records, _BYTES)) is not None:
        decisions = _decisions(raw)
        if gone and len(decisions):
            entities = decisions.entity.texts()
            erased_ones = {one for one in set(entities) if gone.names(one)}
            decisions = decisions.take(np.array([one not in erased_ones for one in entities], dtype=bool))
        yield ColumnBatch(
            decisions,
            _outcomes(raw),
            np.frombuffer(raw["withdrawn"], "<u8"),
            ["sha256:" + digest.hex() for digest in raw["bundles"]],
            raw["labels"],
            raw["kinds"],
        )
        if advance is not None:
            advance(reader.bytes_read, reader.total_bytes)


def _decisions(raw: dict[str, Any]) -> DecisionColumns:
    def ragged(name: str, kind: str, counted: str) -> Ragged:
        counts = np.frombuffer(raw[counted], "<u4").astype(np.int64)
        return Ragged(np.frombuffer(raw[name], kind), counts)

    return DecisionColumns(
        sequence=np.frombuffer(raw["sequence"], "<u8"),
        key=np.frombuffer(raw["key"], "<u8"),
        at=np.frombuffer(raw["at"], "<i8"),
        bundle=np.frombuffer(raw["bundle"], "<u4"),
        fingerprint=np.frombuffer(raw["fingerprint"], "<u8"),
        label=np.frombuffer(raw["label"], "<u4"),
        fallback=np.frombuffer(raw["fallback"], np.bool_),
        action=np.frombuffer(raw["action"], "<u4"),
        propensity=np.frombuffer(raw["propensity"], "<f8"),
        features=ragged("features", "<f4", "feature_counts"),
        pmf=ragged("pmf", "<f8", "pmf_counts"),
        eligible=ragged("eligible", "u1", "eligible_counts"),
        id=ragged("id", "u1", "id_counts"),
        entity=ragged("entity", "u1", "entity_counts"),
    )


def _outcomes(raw: dict[str, Any]) -> OutcomeColumns:
    return OutcomeColumns(
        sequence=np.frombuffer(raw["outcome_sequence"], "<u8"),
        key=np.frombuffer(raw["outcome_key"], "<u8"),
        kind=np.frombuffer(raw["outcome_kind"], "<u4"),
        value=np.frombuffer(raw["outcome_value"], "<f8"),
        revision=np.frombuffer(raw["outcome_revision"], "<u4"),
        proof=np.frombuffer(raw["outcome_proof"], "<i4"),
    )


def _taken(column: Any, rows: npt.NDArray[Any]) -> Any:
    if isinstance(column, dict):
        return {name: _taken(part, rows) for name, part in column.items()}
    return column.take(rows) if isinstance(column, Ragged) else column[rows]


def feature_rows(columns: DecisionColumns, width: int) -> Rows32:
    """Return the features of decisions, which must all have `width` of them, as float32 ``[n, width]``."""
    return np.ascontiguousarray(columns.features.matrix(width), dtype=np.float32)
