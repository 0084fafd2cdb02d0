"""Rows of a source: the fields of decisions and outcomes that learning reads, as Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scorer.ids import digest_text, eligible_actions
from scorer.log.outcome_source import known_kind
from scorer.log.proof import TOKEN
from scorer.log.source.interface import Kind
from scorer.log.tables import digest_of

CODED: Final = pa.dictionary(pa.int32(), pa.string())

DECISIONS: Final = pa.schema(
    [
        ("sequence", pa.int64()),
        ("decision_id", pa.large_string()),
        ("decided_at_us", pa.int64()),
        ("bundle", CODED),
        ("fallback_source", CODED),
        ("schema_fingerprint", pa.uint64()),
        ("action", CODED),
        ("action_index", pa.int64()),
        ("propensity", pa.float64()),
        ("entity", pa.large_string()),
        ("lane", CODED),
        ("features", pa.list_(pa.float32())),
        ("eligible", pa.list_(pa.bool_())),
        ("pmf", pa.list_(pa.float64())),
        ("withheld", pa.list_(pa.int32())),
        ("decision", CODED),
        ("rules", pa.list_(pa.string())),
    ]
)
"""`eligible` and `pmf` have one value per action of the catalogue and are empty for scores. `withheld` has
the positions in `features` of sensitive values that are missing. `decision` is the label of a score, and
`rules` has the ids of the rules with an effect; they are null in rows of tables that version 3 of the schema
wrote."""

OUTCOMES: Final = pa.schema(
    [
        ("sequence", pa.int64()),
        ("decision_id", pa.large_string()),
        ("kind", CODED),
        ("revision", pa.int64()),
        ("value", pa.float64()),
        ("occurred_at_ms", pa.int64()),
        ("received_at_us", pa.int64()),
        ("proof", pa.int8()),
        ("source", pa.int8()),
        ("source_id", CODED),
        ("token_decided_at_ms", pa.int64()),
        ("token_bundle", CODED),
        ("token_index", pa.int64()),
        ("token_propensity", pa.float64()),
    ]
)
"""`proof` is a value of `OutcomeProof` and `source` one of `OutcomeSourceKind`; `source_id` is empty if none
was stated. The claims of the decision token are null without one; `token_bundle`
is "sha256:" and the first 16 digits."""

DELIVERIES: Final = pa.schema(
    [
        ("sequence", pa.int64()),
        ("decision_id", pa.large_string()),
        ("decided_at_us", pa.int64()),
        ("delivered", pa.bool_()),
    ]
)
"""Replies that did not reach their caller, and those that did when they were repeated."""

WITHDRAWALS: Final = pa.schema([("sequence", pa.int64()), ("withdrawn", pa.int64())])
"""`withdrawn` is the sequence of an earlier record, which a reader that stores rows must remove."""

UNKNOWN: Final = pa.schema([("sequence", pa.int64())])

SCHEMAS: Final[dict[Kind, pa.Schema]] = {
    "decisions": DECISIONS,
    "outcomes": OUTCOMES,
    "deliveries": DELIVERIES,
    "withdrawals": WITHDRAWALS,
    "unknown": UNKNOWN,
}

Record = tuple[int, Any]
"""Sequence of a record, and its message."""


def table_of(kind: Kind, records: Sequence[Record]) -> pa.Table:
    """Return records of one kind as a table of its schema.

    Args:
        kind: Kind of the records.
        records: Sequences and messages.
    """
    sequences = [sequence for sequence, _ in records]
    columns = {"sequence": sequences, **_COLUMNS[kind]([record for _, record in records])}
    return table(columns, SCHEMAS[kind])


def table(columns: dict[str, Any], schema: pa.Schema) -> pa.Table:
    """Return columns as a table of a schema."""
    arrays = [
        values if isinstance(values, pa.Array) else pa.array(values, type=field.type)
        for field, values in ((field, columns[field.name]) for field in schema)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _decisions(records: Sequence[Any]) -> dict[str, Any]:
    names = (
        "decision_id",
        "decided_at_us",
        "fallback_source",
        "action",
        "action_index",
        "propensity",
        "lane",
        "decision",
    )
    return {
        **_fields(records, (*names, "entity")),
        "bundle": [digest_of(one) for one in records],
        "schema_fingerprint": np.array([one.schema_fingerprint for one in records], dtype=np.uint64),
        "features": _lists([np.array(one.features, dtype=np.float32) for one in records]),
        "eligible": _lists([eligible_actions(one.eligible_mask, len(one.pmf)) for one in records]),
        "pmf": _lists([np.array(one.pmf, dtype=np.float64) for one in records]),
        "withheld": [list(one.withheld) for one in records],
        "rules": [[rule.id for rule in one.rules.fired] for one in records],
    }


def _outcomes(records: Sequence[Any]) -> dict[str, Any]:
    tokens = [one.token if one.proof == TOKEN else None for one in records]
    names = ("decision_id", "kind", "revision", "value", "occurred_at_ms", "received_at_us", "proof")
    return {
        **_fields(records, names),
        "source": [known_kind(one) for one in records],
        "source_id": [one.source.id for one in records],
        "token_bundle": [None if one is None else digest_text(one.bundle) for one in tokens],
        **{
            f"token_{name}": [None if one is None else getattr(one, name) for one in tokens]
            for name in ("decided_at_ms", "index", "propensity")
        },
    }


def _deliveries(records: Sequence[Any]) -> dict[str, Any]:
    return _fields(records, DELIVERIES.names[1:])


def _withdrawals(records: Sequence[Any]) -> dict[str, Any]:
    return {"withdrawn": [one.sequence for one in records]}


def _fields(records: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: [getattr(one, name) for one in records] for name in names}


def _lists(rows: Sequence[npt.NDArray[Any]]) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(rows)))


_COLUMNS: Final[dict[Kind, Callable[[Sequence[Any]], dict[str, Any]]]] = {
    "decisions": _decisions,
    "outcomes": _outcomes,
    "deliveries": _deliveries,
    "withdrawals": _withdrawals,
    "unknown": lambda _: {},
}
