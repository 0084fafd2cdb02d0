"""Conversion of rows of shipped tables to whole records, as they were in the log.

A mask of eligible actions that a record has in another form, such as an empty one for "all", is returned in
its shortest form. Everything else is what the server recorded, apart from columns that an earlier version of
the schema did not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from scorer.ids import hex_of
from scorer.log.outcome_source import UNSPECIFIED, source_code
from scorer.log.proof import PROOFS, UNPROVEN
from scorer.log.scanning import Entry, entry_of
from scorer.log.shipped.schema import DECISIONS, EVENTS, OBSERVATIONS, OUTCOMES, SCHEMAS
from scorer.v1.log_pb2 import DecisionRecord, ObservationRecord, OutcomeRecord, SealedFeatures, TokenClaims
from scorer.v1.scoring_pb2 import AppliedRules, OutcomeSource, Reason, ReasonDirection

_UNREAD: Final = {"server", "log", "segment", "hour"}
ENTRY_COLUMNS: Final = {
    **{
        name: tuple(one for one in SCHEMAS[name].names if one not in _UNREAD)
        for name in (DECISIONS, OUTCOMES, OBSERVATIONS)
    },
    EVENTS: ("sequence", "record"),
}
"""Columns of each table that records consist of."""

_PLAIN: Final = ("decision_id", "lane", "lane_table", "entity", "data_load_us", "exec_us")
_LATER: Final = ("linked_checkpoint", "features_defaulted", "stated_features", "faulted_functions")
"""Fields that are null in rows that an earlier version wrote."""
_RESULTS: Final = (
    "margin",
    "score",
    "decision",
    "action_index",
    "action",
    "propensity",
    "expected_reward",
)
"""Fields that are null where the record has no such result."""
_LISTS: Final = ("features", "pmf")
"""Columns with many numbers, which are read by numpy."""


def entries(name: str, rows: pa.Table) -> Iterator[Entry]:
    """Yield the records of rows of a shipped table, in the order of the rows.

    Args:
        name: Name of the table.
        rows: Its columns `ENTRY_COLUMNS`.
    """
    if name == EVENTS:
        for sequence, payload in zip(rows["sequence"].to_pylist(), rows["record"].to_pylist(), strict=True):
            yield entry_of(sequence, payload)
        return
    kind, record = _KINDS[name]
    numbers = {one: _lists(rows[one]) for one in _LISTS if one in rows.column_names}
    for at, row in enumerate(_plain_rows(rows)):
        row |= {one: values(at) for one, values in numbers.items()}
        yield Entry(row["sequence"], kind, record(row))


def _plain_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows without their long lists, with times as microseconds since the Unix epoch."""
    columns = [one for one in rows.column_names if one not in _LISTS]
    plain = rows.select(columns)
    for at, field in enumerate(plain.schema):
        if pa.types.is_timestamp(field.type):
            plain = plain.set_column(at, field.name, plain[field.name].cast(pa.int64()))
    found: list[dict[str, Any]] = plain.to_pylist()
    return found


def _lists(column: pa.ChunkedArray) -> Callable[[int], list[float]]:
    """Return a function from the number of a row to its numbers."""
    lists = column.combine_chunks()
    offsets, values = lists.offsets.to_numpy(), lists.values.to_numpy(zero_copy_only=False)
    return lambda at: values[offsets[at] : offsets[at + 1]].tolist()


def _decision(row: dict[str, Any]) -> DecisionRecord:
    return DecisionRecord(
        decided_at_us=row["decided_at"],
        fallback_source=row["fallback_source"] or "",
        fallback_reason=row["fallback_reason"] or "",
        **_answer(row),
    )


def _observation(row: dict[str, Any]) -> ObservationRecord:
    live = {
        name: row[f"live_{name}"] or None for name in (*_RESULTS, "fallback_reason") if f"live_{name}" in row
    }
    return ObservationRecord(
        decision=DecisionRecord(decided_at_us=row["observed_at"], **_answer(row)),
        answered_at_us=row["answered_at"],
        lag_us=row["lag_us"],
        error=row["error"] or "",
        absent_features=row["absent_features"],
        live_lane=row["live_lane"],
        live_bundle=_digest(row["live_bundle"]),
        live_data_load_us=row["live_data_load_us"],
        live_exec_us=row["live_exec_us"],
        **{f"live_{name}": value for name, value in live.items() if value is not None},
    )


def _answer(row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that decisions and observations share."""
    sealed, rules = row["sealed"], row["applied_rules"]
    return {
        **{name: row[name] for name in _PLAIN},
        **{name: row[name] for name in (*_RESULTS, *_LATER) if row[name] is not None},
        "checkpoint": row["checkpoint"] or "",
        "bundle": _digest(row["bundle"]),
        "schema_fingerprint": int(row["schema_fingerprint"], 16),
        "features": row["features"],
        "pmf": row["pmf"],
        "withheld": row["withheld"],
        "reasons": row["reasons"],
        "eligible_mask": mask_of(row["eligible"]),
        "requested_mask": mask_of(row["requested"]),
        "sealed": None if sealed is None else SealedFeatures.FromString(sealed),
        "feature_reasons": [_reason(one) for one in row["feature_reasons"] or ()],
        "rules": None if rules is None else AppliedRules.FromString(rules),
        "features_at_us": row["features_at"] or 0,
    }


def _reason(one: dict[str, Any]) -> Reason:
    raises, lowers = ReasonDirection.REASON_DIRECTION_RAISES, ReasonDirection.REASON_DIRECTION_LOWERS
    return Reason(
        code=one["code"],
        feature=one["feature"],
        contribution=one["contribution"] or 0.0,
        direction=raises if one["raises"] else lowers,
    )


def _outcome(row: dict[str, Any]) -> OutcomeRecord:
    token = row["token"]
    return OutcomeRecord(
        checkpoint=row["checkpoint"] or "",
        decision_id=row["decision_id"],
        kind=row["kind"],
        value=row["value"],
        revision=row["revision"],
        occurred_at_ms=(row["occurred_at"] or 0) // 1000,
        received_at_us=row["received_at"],
        proof=PROOFS.index(row["proof"]) if row["proof"] in PROOFS else UNPROVEN,  # type: ignore[arg-type]
        token=None if token is None else TokenClaims.FromString(token),
        source=_source(row["source"], row["source_id"]),
    )


def _source(kind: str | None, identifier: str | None) -> OutcomeSource | None:
    """Return the source of an outcome; None if none was stated."""
    code = source_code(kind)
    if code == UNSPECIFIED and not identifier:
        return None
    return OutcomeSource(kind=code, id=identifier or "")  # type: ignore[arg-type]


def mask_of(eligible: list[bool] | None) -> bytes:
    """Return a mask of eligible actions; empty if every action is eligible."""
    if not eligible or all(eligible):
        return b""
    return np.packbits(np.array(eligible, dtype=bool), bitorder="little").tobytes()


def _digest(text: str) -> bytes:
    return bytes.fromhex(hex_of(text))


_KINDS: Final[dict[str, tuple[str, Callable[[dict[str, Any]], Any]]]] = {
    DECISIONS: ("decision", _decision),
    OBSERVATIONS: ("observation", _observation),
    OUTCOMES: ("outcome", _outcome),
}
