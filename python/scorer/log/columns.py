"""Decisions and outcomes of one checkpoint as numpy columns, for millions of rows.

`scan` yields records one by one as Python objects, which takes several microseconds each. The functions here
decode a batch of records in Rust and keep only the fields that offline evaluation reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from os import PathLike, fspath
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from scorer.ids import decision_key, digest_text
from scorer.log.erasure import erased
from scorer.log.reading import Advance
from scorer.log.scanning import WITHDRAWN, Entry
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
        key: Hash of the decision's id. `scan_columns` gives equal keys for all logs that this process reads,
            which differ between processes. Other functions give `scorer.ids.decision_key`.
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
        requested: Masks of the actions that the requests allowed before rules. Rows of shipped tables that
            version 3 of the schema wrote do not have them; there they are those of the eligible actions.
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
    requested: Ragged
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


def no_decisions() -> DecisionColumns:
    """Return columns without a row."""
    return _decisions(defaultdict(bytes))


def no_outcomes() -> OutcomeColumns:
    """Return columns without a row."""
    return _outcomes(defaultdict(bytes))


def record_columns(
    entries: Iterable[Entry], checkpoint: str, *, records: int = _RECORDS
) -> Iterator[ColumnBatch]:
    """Yield the decisions and outcomes of a checkpoint among records, with keys that all processes share.

    `scan_columns` is faster, but its keys can be compared only within a process and between directories.

    Args:
        entries: The records in the order of the log, without withdrawn ones and erased entities.
        checkpoint: Return the records of this checkpoint.
        records: Largest number of records of a batch.
    """
    following = iter(entries)
    while batch := list(islice(following, records)):
        own = [one for one in batch if one.checkpoint == checkpoint]
        decisions = [one for one in own if one.kind == "decision"]
        outcomes = [one for one in own if one.kind == "outcome"]
        bundle, bundles = _coded([one.record.bundle for one in decisions])
        label, labels = _coded([_label(one.record) for one in decisions])
        kind, kinds = _coded([one.record.kind for one in outcomes])
        raw: dict[str, Any] = {
            "sequence": _packed(decisions, "sequence", "<u8", of_record=False),
            "key": _packed_keys(decisions),
            "at": _packed(decisions, "decided_at_us", "<i8"),
            "bundle": bundle,
            "fingerprint": _packed(decisions, "schema_fingerprint", "<u8"),
            "label": label,
            "fallback": np.array([bool(one.record.fallback_source) for one in decisions], bool).tobytes(),
            "action": _packed(decisions, "action_index", "<u4"),
            "propensity": _packed(decisions, "propensity", "<f8"),
            "outcome_sequence": _packed(outcomes, "sequence", "<u8", of_record=False),
            "outcome_key": _packed_keys(outcomes),
            "outcome_kind": kind,
            "outcome_value": _packed(outcomes, "value", "<f8"),
            "outcome_revision": _packed(outcomes, "revision", "<u4"),
            "outcome_proof": _packed(outcomes, "proof", "<i4"),
        }
        lists = {
            "feature": ("features", [np.array(one.record.features, "<f4").tobytes() for one in decisions], 4),
            "pmf": ("pmf", [np.array(one.record.pmf, "<f8").tobytes() for one in decisions], 8),
            "eligible": ("eligible", [one.record.eligible_mask for one in decisions], 1),
            "requested": ("requested", [_requested(one.record) for one in decisions], 1),
            "id": ("id", [one.record.decision_id.encode() for one in decisions], 1),
            "entity": ("entity", [one.record.entity.encode() for one in decisions], 1),
        }
        for counted, (name, parts, item) in lists.items():
            raw[name] = b"".join(parts)
            raw[f"{counted}_counts"] = np.array([len(one) // item for one in parts], "<u4").tobytes()
        digests = [digest_text(one) for one in bundles]
        withdrawn = np.array([one.record.sequence for one in batch if one.kind == WITHDRAWN], np.uint64)
        yield ColumnBatch(_decisions(raw), _outcomes(raw), withdrawn, digests, labels, kinds)


def _label(record: Any) -> str:
    return str(record.action if record.pmf or record.action else record.decision)


def _requested(record: Any) -> bytes:
    mask: bytes = record.requested_mask if record.HasField("rules") else record.eligible_mask
    return mask


def _coded(values: Sequence[Any]) -> tuple[bytes, list[Any]]:
    """Return codes of values, and the values that they refer to."""
    known = {value: code for code, value in enumerate(dict.fromkeys(values))}
    return np.array([known[value] for value in values], "<u4").tobytes(), list(known)


def _packed(entries: Sequence[Entry], name: str, kind: str, *, of_record: bool = True) -> bytes:
    return np.array([getattr(one.record if of_record else one, name) for one in entries], kind).tobytes()


def _packed_keys(entries: Sequence[Entry]) -> bytes:
    return np.array([decision_key(one.record.decision_id) for one in entries], "<u8").tobytes()


def _decisions(raw: Mapping[str, Any]) -> DecisionColumns:
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
        requested=ragged("requested", "u1", "requested_counts"),
        id=ragged("id", "u1", "id_counts"),
        entity=ragged("entity", "u1", "entity_counts"),
    )


def _outcomes(raw: Mapping[str, Any]) -> OutcomeColumns:
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
