"""Conversion of rows of shipped tables to the rows of a source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scorer.ids import digest_text
from scorer.log.outcome_source import SOURCES, UNSPECIFIED
from scorer.log.proof import PROOFS, TOKEN
from scorer.log.sealing import SealedCounts, open_features
from scorer.log.shipped.schema import DECISIONS, EVENTS, OUTCOMES
from scorer.log.source.interface import Kind
from scorer.log.source.rows import SCHEMAS, table, table_of
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, SealedFeatures, TokenClaims

if TYPE_CHECKING:
    from scorer.log.sealing import ReaderKey

COLUMNS: Final = {
    DECISIONS: (
        "sequence",
        "checkpoint",
        "decided_at",
        "fallback_source",
        "decision_id",
        "decision",
        "lane",
        "bundle",
        "entity",
        "schema_fingerprint",
        "action_index",
        "action",
        "propensity",
        "features",
        "withheld",
        "sealed",
        "eligible",
        "pmf",
        "rules",
        "faulted_functions",
    ),
    OUTCOMES: (
        "sequence",
        "checkpoint",
        "received_at",
        "occurred_at",
        "decision_id",
        "kind",
        "value",
        "revision",
        "proof",
        "token",
        "source",
        "source_id",
    ),
    EVENTS: ("sequence", "checkpoint", "kind", "withdrawn_sequence", "record"),
}
"""Columns of each table that are read."""

_EVENTS: Final[dict[str, Kind]] = {
    "delivery": "deliveries",
    "withdrawn": "withdrawals",
    "unknown": "unknown",
}
"""Kinds of a source by the kinds of events; others are not read."""


def source_rows(
    name: str, rows: pa.Table, base: int, reader_key: ReaderKey | None
) -> Iterator[tuple[Kind, pa.Table]]:
    """Yield rows of a shipped table as rows of a source, by their kind.

    Args:
        name: Name of the table.
        rows: Its columns `COLUMNS`, of one checkpoint.
        base: Number that is added to all sequences.
        reader_key: Key that decrypts sensitive features.
    """
    if name == DECISIONS:
        yield "decisions", _decisions(rows, base, reader_key)
    elif name == OUTCOMES:
        yield "outcomes", _outcomes(rows, base)
    else:
        yield from _events(rows, base)


def _decisions(rows: pa.Table, base: int, reader_key: ReaderKey | None) -> pa.Table:
    columns = {
        "sequence": _sequences(rows, base),
        "decided_at_us": _time(rows["decided_at"]),
        "schema_fingerprint": _fingerprints(rows["schema_fingerprint"]),
        "action_index": _known(rows["action_index"], 0),
        "propensity": _known(rows["propensity"], 0.0),
        "withheld": rows["withheld"],
        "eligible": _lists(rows["eligible"]),
        "pmf": _lists(rows["pmf"]),
        "features": rows["features"],
        "rules": _rules(rows),
        **{
            name: _known(rows[name], "")
            for name in ("decision_id", "decision", "bundle", "fallback_source", "action", "entity", "lane")
        },
    }
    if reader_key is not None and rows["sealed"].null_count < len(rows):
        columns |= _opened(rows, reader_key)
    return table(_typed(columns, "decisions"), SCHEMAS["decisions"])


def _rules(rows: pa.Table) -> pa.Array:
    """Return the ids of the rules with an effect; null in rows that a version without the column wrote."""
    rules = rows["rules"].combine_chunks()
    names = pa.ListArray.from_arrays(_lists(rows["rules"]).offsets, pc.struct_field(rules.flatten(), "id"))
    # `rules` is null for bundles without rules as well; a later version always writes the other column.
    unknown = rows["faulted_functions"].combine_chunks().is_null()
    return pc.if_else(unknown, pa.scalar(None, names.type), names)


def _opened(rows: pa.Table, key: ReaderKey) -> dict[str, Any]:
    """Return the features and the positions of missing ones, after decryption."""
    features, withheld = rows["features"].to_pylist(), rows["withheld"].to_pylist()
    counts = SealedCounts()
    names = ("sealed", "checkpoint", "decision_id", "schema_fingerprint")
    for at, (sealed, checkpoint, decision, fingerprint) in enumerate(
        zip(*(rows[name].to_pylist() for name in names), strict=True)
    ):
        if sealed is None:
            continue
        record = DecisionRecord(
            checkpoint=checkpoint or "",
            decision_id=decision,
            schema_fingerprint=int(fingerprint, 16),
            features=features[at],
            withheld=withheld[at],
            sealed=SealedFeatures.FromString(sealed),
        )
        open_features(record, key, counts)
        features[at], withheld[at] = list(record.features), list(record.withheld)
    return {
        "features": pa.array(features, pa.list_(pa.float32())),
        "withheld": pa.array(withheld, pa.list_(pa.int32())),
    }


def _outcomes(rows: pa.Table, base: int) -> pa.Table:
    proofs = pa.array(PROOFS, pa.string())
    proof = pc.index_in(rows["proof"], value_set=proofs).fill_null(PROOFS.index("unproven"))
    sources = pa.array(SOURCES, pa.string())
    tokens = [
        TokenClaims.FromString(text or b"") if at == TOKEN else None
        for text, at in zip(rows["token"].to_pylist(), proof.to_pylist(), strict=True)
    ]
    columns = {
        "sequence": _sequences(rows, base),
        "decision_id": rows["decision_id"],
        "kind": rows["kind"],
        "revision": rows["revision"],
        "value": rows["value"],
        "occurred_at_ms": pa.array(_time(rows["occurred_at"]).to_numpy() // 1000),
        "received_at_us": _time(rows["received_at"]),
        "proof": proof,
        # Rows that a version without sources wrote have neither column.
        "source": pc.index_in(rows["source"], value_set=sources).fill_null(UNSPECIFIED),
        "source_id": _known(rows["source_id"], ""),
        "token_bundle": [None if one is None else digest_text(one.bundle) for one in tokens],
        **{
            f"token_{name}": [None if one is None else getattr(one, name) for one in tokens]
            for name in ("decided_at_ms", "index", "propensity")
        },
    }
    return table(_typed(columns, "outcomes"), SCHEMAS["outcomes"])


def _events(rows: pa.Table, base: int) -> Iterator[tuple[Kind, pa.Table]]:
    for event, kind in _EVENTS.items():
        own = rows.filter(pc.equal(rows["kind"], event))
        if not len(own):
            continue
        sequences = _sequences(own, base)
        if kind == "unknown":
            yield kind, table(_typed({"sequence": sequences}, kind), SCHEMAS[kind])
        elif kind == "withdrawals":
            withdrawn = _sequences(own, base, "withdrawn_sequence")
            columns = {"sequence": sequences, "withdrawn": withdrawn}
            yield kind, table(_typed(columns, kind), SCHEMAS[kind])
        else:
            records = [LogRecord.FromString(one).delivery for one in own["record"].to_pylist()]
            yield kind, table_of(kind, list(zip(sequences.to_pylist(), records, strict=True)))


def _typed(columns: dict[str, Any], kind: Kind) -> dict[str, Any]:
    """Return columns in the types of a kind; lists of Python objects are left as they are."""
    schema = SCHEMAS[kind]
    return {name: _cast(one, schema.field(name).type) for name, one in columns.items()}


def _cast(values: Any, kind: pa.DataType) -> Any:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not isinstance(values, pa.Array) or values.type == kind:
        return values
    if pa.types.is_dictionary(kind):
        return values.cast(kind.value_type).dictionary_encode()
    return values.cast(kind)


def _sequences(rows: pa.Table, base: int, name: str = "sequence") -> pa.Array:
    return pa.array(rows[name].to_numpy() + base)


def _time(values: pa.ChunkedArray) -> pa.Array:
    """Return microseconds since the Unix epoch; 0 where there is no time."""
    return _known(values.cast(pa.timestamp("us")).cast(pa.int64()), 0)


def _known(values: pa.ChunkedArray, otherwise: Any) -> pa.Array:
    return values.combine_chunks().fill_null(otherwise)


def _lists(values: pa.ChunkedArray) -> pa.Array:
    """Return lists in which a missing list is empty."""
    lists = values.combine_chunks()
    if not lists.null_count:
        return lists
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), lists.flatten())


def _fingerprints(texts: pa.ChunkedArray) -> pa.Array:
    """Return 64-bit numbers of texts of 16 hexadecimal digits, among which few are distinct."""
    coded = texts.combine_chunks().dictionary_encode()
    values = [int(one, 16) for one in coded.dictionary.to_pylist()]
    return pa.array(values, pa.uint64()).take(coded.indices)
