"""What a join keeps of each record of a log: one checkpoint's decisions and outcomes as Arrow columns.

The columns do not depend on the moment of a join, its window or the bundles at hand, so they can be kept and
extended as the log grows (`cache`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scorer.ids import digest_text, eligible_actions
from scorer.log.proof import TOKEN
from scorer.log.tables import digest_of, is_action

if TYPE_CHECKING:
    from scorer.v1.log_pb2 import DecisionRecord, DeliveryRecord, OutcomeRecord

_CODED = pa.dictionary(pa.int32(), pa.string())

DECISIONS = pa.schema(
    [
        ("sequence", pa.int64()),
        ("decision_id", pa.large_string()),
        ("time_us", pa.int64()),
        ("bundle", _CODED),
        ("fallback", _CODED),
        ("fingerprint", pa.uint64()),
        ("action", _CODED),
        ("action_index", pa.int64()),
        ("features", pa.int32()),
        ("probabilities", pa.int32()),
        ("fault", pa.int8()),
        ("propensity", pa.float64()),
        ("taken", pa.float64()),
        ("entity", pa.large_string()),
        ("lane", _CODED),
        ("context", pa.list_(pa.float32())),
        ("eligible", pa.list_(pa.bool_())),
        ("pmf", pa.list_(pa.float32())),
        ("withheld", pa.list_(pa.int32())),
    ]
)
"""`fault`: position in `FAULTS` plus 1; 0: none. `features` and `probabilities`: lengths of the lists.
`taken`: the pmf's probability of the action. `withheld`: positions in `context` of sensitive values that are
missing."""

LIGHT = tuple(DECISIONS.names[:13])
"""Columns that decide whether a decision is used."""

OUTCOMES = pa.schema(
    [
        ("sequence", pa.int64()),
        ("decision_id", pa.large_string()),
        ("revision", pa.int64()),
        ("value", pa.float64()),
        ("occurred_at_ms", pa.int64()),
        ("received_at_us", pa.int64()),
        ("proof", pa.int8()),
        ("token_decided_at_ms", pa.int64()),
        ("token_bundle", _CODED),
        ("token_index", pa.int64()),
        ("token_propensity", pa.float64()),
    ]
)
"""`proof`: `OutcomeProof`. What the token says is null without one. `token_bundle`: "sha256:" and the first
16 digits."""

CLAIMS = ("token_decided_at_ms", "token_bundle", "token_index", "token_propensity")
"""Columns of an outcome that only a token fills."""

DELIVERIES = pa.schema(
    [
        ("sequence", pa.int64()),
        ("decision_id", pa.large_string()),
        ("decided_at_us", pa.int64()),
        ("delivered", pa.bool_()),
    ]
)
"""Marks of replies that did not reach their caller, and of those that did when they were repeated."""

NOTES = pa.schema([("sequence", pa.int64()), ("name", _CODED), ("example", pa.large_string())])
"""Findings that concern neither a decision nor an outcome of the reward's kind."""

FAULTS = (
    "pmf with impossible values",
    "pmf does not sum to 1",
    "mass outside the eligible set",
    "no propensity",
    "propensity is not pmf[action]",
)

ROWS = 8_192
"""Records that wait as Python objects before they become columns."""

_EXAMPLES = 5
_SUM = 1e-6
_AGREE = 1e-9

Flush = Callable[[str, pa.Table], None]
"""Takes a table of the kind "decisions", "outcomes", "deliveries" or "notes"."""


class CheckpointColumns:
    """Turns the records of one checkpoint into columns, in the order of the log.

    Args:
        kind: the outcome that is the reward.
        flush: receives every full table, and the rest at `finish`.
    """

    def __init__(self, kind: str, flush: Flush) -> None:
        self._kind = kind
        self._flush = flush
        self._decisions: list[tuple[int, DecisionRecord]] = []
        self._outcomes: list[tuple[int, OutcomeRecord]] = []
        self._deliveries: list[tuple[int, DeliveryRecord]] = []
        self._notes: list[tuple[int, str, str]] = []
        self._scores: list[str] = []
        self._score_count = 0
        self.chooses = False
        """Whether decisions are kept: from the first one that names an action on."""

    def add(self, sequence: int, kind: str, record: Any) -> None:
        """Takes the next record, a "decision", an "outcome" or a "delivery"."""
        if kind == "decision":
            self._decision(sequence, record)
        elif kind == "outcome":
            self._outcome(sequence, record)
        else:
            self._deliveries.append((sequence, record))
            if len(self._deliveries) >= ROWS:
                self._flush_deliveries()

    def _decision(self, sequence: int, record: DecisionRecord) -> None:
        """Takes the next decision. Of a checkpoint that gives scores alone nothing is kept but the count."""
        if not self.chooses and not is_action(record):
            self._score_count += 1
            if self._score_count <= _EXAMPLES:
                self._scores.append(record.decision_id)
            return
        if not self.chooses:
            self.chooses = True
            unnamed = [""] * (self._score_count - len(self._scores))
            for name in (*self._scores, *unnamed):
                self.note(sequence, "no action", name)
        self._decisions.append((sequence, record))
        if len(self._decisions) >= ROWS:
            self._flush_decisions()

    def _outcome(self, sequence: int, record: OutcomeRecord) -> None:
        """Takes the next outcome."""
        if record.kind != self._kind:
            self.note(sequence, "outcome of another kind", record.kind)
            return
        self._outcomes.append((sequence, record))
        if len(self._outcomes) >= ROWS:
            self._flush_outcomes()

    def note(self, sequence: int, name: str, example: str) -> None:
        """Takes a finding about a record."""
        self._notes.append((sequence, name, example))
        if len(self._notes) >= ROWS:
            self._flush_notes()

    def finish(self) -> None:
        """Write the rows that are still buffered."""
        self._flush_decisions()
        self._flush_outcomes()
        self._flush_deliveries()
        self._flush_notes()

    def _flush_decisions(self) -> None:
        if self._decisions:
            self._flush("decisions", _decisions_table(self._decisions))
            self._decisions = []

    def _flush_outcomes(self) -> None:
        rows, self._outcomes = self._outcomes, []
        if rows:
            self._flush("outcomes", _outcomes_table(rows))

    def _flush_deliveries(self) -> None:
        rows, self._deliveries = self._deliveries, []
        if rows:
            columns = {
                "sequence": [sequence for sequence, _ in rows],
                **{name: [getattr(one, name) for _, one in rows] for name in DELIVERIES.names[1:]},
            }
            self._flush("deliveries", _table(columns, DELIVERIES))

    def _flush_notes(self) -> None:
        rows, self._notes = self._notes, []
        if rows:
            columns = dict(zip(NOTES.names, zip(*rows, strict=True), strict=True))
            self._flush("notes", _table(columns, NOTES))


def _outcomes_table(rows: Sequence[tuple[int, OutcomeRecord]]) -> pa.Table:
    records = [record for _, record in rows]
    tokens = [one.token if one.proof == TOKEN else None for one in records]
    columns: dict[str, Any] = {
        "sequence": [sequence for sequence, _ in rows],
        "token_bundle": [None if one is None else digest_text(one.bundle) for one in tokens],
        **{
            f"token_{name}": [None if one is None else getattr(one, name) for one in tokens]
            for name in ("decided_at_ms", "index", "propensity")
        },
    }
    for name in ("decision_id", "revision", "value", "occurred_at_ms", "received_at_us", "proof"):
        columns[name] = [getattr(one, name) for one in records]
    return _table(columns, OUTCOMES)


def _decisions_table(rows: Sequence[tuple[int, DecisionRecord]]) -> pa.Table:
    records = [record for _, record in rows]
    pmfs = [np.array(one.pmf, dtype=np.float64) for one in records]
    masks = [eligible_actions(one.eligible_mask, len(one.pmf)) for one in records]
    columns: dict[str, Any] = {
        "sequence": [sequence for sequence, _ in rows],
        "time_us": [one.decided_at_us for one in records],
        "bundle": [digest_of(one) for one in records],
        "fallback": [one.fallback_source for one in records],
        "fingerprint": np.array([one.schema_fingerprint for one in records], dtype=np.uint64),
        "features": [len(one.features) for one in records],
        "probabilities": [len(one.pmf) for one in records],
        "fault": _faults(records, pmfs, masks),
        "taken": [
            float(pmf[one.action_index]) if one.action_index < len(pmf) else float("nan")
            for one, pmf in zip(records, pmfs, strict=True)
        ],
        "context": _lists([np.array(one.features, dtype=np.float32) for one in records]),
        "eligible": _lists(masks),
        "pmf": _lists([one.astype(np.float32) for one in pmfs]),
        "withheld": [list(one.withheld) for one in records],
    }
    for name in ("decision_id", "action", "action_index", "entity", "lane", "propensity"):
        columns[name] = [getattr(one, name) for one in records]
    return _table(columns, DECISIONS)


def _faults(
    records: Sequence[DecisionRecord], pmfs: Sequence[npt.NDArray[Any]], masks: Sequence[npt.NDArray[Any]]
) -> npt.NDArray[np.int8]:
    """`[n]` the first rule of `FAULTS` that the probabilities break, from 1; 0: they hold."""
    fault = np.zeros(len(records), dtype=np.int8)
    lengths = np.array([len(pmf) for pmf in pmfs])
    for width in np.unique(lengths[lengths > 0]):
        at = np.flatnonzero(lengths == width).tolist()
        pmf, eligible = np.stack([pmfs[row] for row in at]), np.stack([masks[row] for row in at])
        p = np.array([records[row].propensity for row in at])
        action = np.array([records[row].action_index for row in at], dtype=np.int64)
        taken = pmf[np.arange(len(at)), np.minimum(action, width - 1)]
        with np.errstate(invalid="ignore"):
            rules = (
                ~((pmf >= 0) & (pmf <= 1 + _SUM)).all(axis=1),
                ~(np.abs(pmf.sum(axis=1) - 1) <= _SUM),
                (np.where(eligible, 0, pmf) != 0).any(axis=1),
                ~((p > 0) & (p <= 1 + _SUM)),
                ~(np.abs(p - taken) <= _AGREE),
            )
        found = np.argmax(rules, axis=0) + 1
        fault[at] = np.where(np.any(rules, axis=0), found, 0)
    return fault


def _lists(rows: Sequence[npt.NDArray[Any]]) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(rows)))


def _table(columns: dict[str, Any], schema: pa.Schema) -> pa.Table:
    arrays = [
        values if isinstance(values, pa.Array) else pa.array(values, type=field.type)
        for field, values in ((field, columns[field.name]) for field in schema)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
