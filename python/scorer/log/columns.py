"""Decisions and outcomes of one checkpoint as numpy columns, decoded in Rust: for work over millions of rows.

`scan` yields records one by one as Python objects, which costs some microseconds each. Here a batch is
decoded at once, and only what offline evaluation reads is kept.
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
    """Rows of different lengths, one behind the other.

    Attributes:
        values: All values.
        counts: `[n]` how many of them each row has.
    """

    values: npt.NDArray[Any]
    counts: Ints

    def __len__(self) -> int:
        return len(self.counts)

    def take(self, rows: npt.NDArray[Any]) -> Ragged:
        """Return the rows at a mask or at positions."""
        at = np.flatnonzero(rows) if rows.dtype == bool else rows
        counts = self.counts[at]
        starts = np.concatenate([[0], np.cumsum(self.counts)])[at]
        first = np.concatenate([[0], np.cumsum(counts)[:-1]]) if len(counts) else np.zeros(0, np.int64)
        places = np.repeat(starts - first, counts) + np.arange(int(counts.sum()))
        return Ragged(self.values[places], counts)

    def matrix(self, width: int) -> npt.NDArray[Any]:
        """Return the rows, which all have `width` values, as `[n, width]`."""
        return self.values.reshape(-1, width)

    def texts(self) -> list[str]:
        """Return each row of bytes as text."""
        whole, ends = self.values.tobytes(), np.cumsum(self.counts)
        return [whole[end - count : end].decode() for end, count in zip(ends, self.counts, strict=True)]


class Columns:
    """Base of dataclasses whose fields are columns of the same length: arrays, `Ragged`, or dicts of them."""

    def __len__(self) -> int:
        return len(getattr(self, fields(cast("Any", self))[0].name))

    def take(self, rows: npt.NDArray[Any]) -> Self:
        """Return the rows at a mask or at positions."""
        own = {one.name: getattr(self, one.name) for one in fields(cast("Any", self))}
        return type(self)(**{name: _taken(column, rows) for name, column in own.items()})


@dataclass(frozen=True)
class DecisionColumns(Columns):
    """Decisions, `[n]` each.

    Attributes:
        sequence: Number of the record in its log.
        key: Hash of the decision's id; the same in every log that this process reads, another one in other
            processes.
        at: When it was decided, microseconds since the Unix epoch.
        bundle: Code into the batch's `bundles`.
        fingerprint: Of the schema that the features are in.
        label: Code into the batch's `labels`: the decision, or the action.
        fallback: Whether a fallback answered.
        action: Position of the action in its bundle's catalogue.
        propensity: Of the action when it was drawn.
        features: float32, in the order of the bundle's schema.
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
    """Reports of outcomes, `[n]` each.

    Attributes:
        sequence: Number of the record in its log.
        key: Hash of the decision's id, as in `DecisionColumns`.
        kind: Code into the batch's `kinds`.
        value: What was reported.
        revision: Of the report.
        proof: `OutcomeProof`.
    """

    sequence: Keys
    key: Keys
    kind: npt.NDArray[np.uint32]
    value: Floats
    revision: npt.NDArray[np.uint32]
    proof: npt.NDArray[np.int32]


@dataclass(frozen=True)
class ColumnBatch:
    """Records of a stretch of a log.

    Attributes:
        decisions: Without those of erased entities.
        outcomes: Their reports; also of decisions that are elsewhere.
        withdrawn: Sequences of records that do not count; they precede this batch's end by at most
            `scorer.log.scanning.REACH` records, so they may be of the batch before.
        bundles: Digests that `decisions.bundle` points into.
        labels: Texts that `decisions.label` points into.
        kinds: Texts that `outcomes.kind` points into.
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

    Records that a batch's `withdrawn` names are still among the decisions and outcomes: the caller leaves
    them out once it has read everything.

    Args:
        directory: The log; a server may be writing it meanwhile.
        checkpoint: Whose records.
        start_sequence: First record of interest.
        advance: Called with the bytes read so far and the bytes in all.
        records: Most records of a batch, of all kinds and checkpoints.

    Raises:
        LogError: The directory is no log, cannot be read, or holds another program's records.
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
    """Return the features of decisions, which all have `width` of them, as `[n, width]` float32."""
    return np.ascontiguousarray(columns.features.matrix(width), dtype=np.float32)
