"""Conversion of encoded records to the rows of the tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scorer.errors import ShipError
from scorer.ids import digest_text, eligible_actions
from scorer.log.outcome_source import source_columns
from scorer.log.proof import proof_in_words
from scorer.log.shipped.schema import DECISIONS, EVENTS, OBSERVATIONS, OUTCOMES, SCHEMAS, TIME
from scorer.log.tables import feature_reasons, fired_rules, ruled_score
from scorer.ship.batch import Batch
from scorer.ship.decoding import UNKNOWN, kind_of, record_class

_HOUR_US = 3_600_000_000
_Rows = list[tuple[int, Any]]
"""Indices in the batch, and records."""


def tables_of(batch: Batch) -> dict[str, pa.Table]:
    """Return the rows of a batch by table, each in the order of the log. Tables without rows are empty.

    Raises:
        ShipError: A record was written by another program.
    """
    rows: dict[str, _Rows] = {name: [] for name in SCHEMAS}
    decode = record_class().FromString
    for index, payload in enumerate(batch.payloads):
        kind = kind_of(payload)
        try:
            record = decode(payload)
        except Exception:
            raise ShipError(
                f"record {batch.sequences[index]} is intact but no scorer.v1.LogRecord: another program "
                "wrote it; give the directory of a scorer server"
            ) from None
        if kind == "decision":
            rows[DECISIONS].append((index, record.decision))
        elif kind == "outcome":
            rows[OUTCOMES].append((index, record.outcome))
        elif kind == "observation":
            rows[OBSERVATIONS].append((index, record.observation))
        else:
            rows[EVENTS].append((index, record))
    columns: dict[str, Callable[[Batch, _Rows], dict[str, Any]]] = {
        DECISIONS: _decisions,
        OUTCOMES: _outcomes,
        OBSERVATIONS: _observations,
        EVENTS: _events,
    }
    return {name: _table(batch, name, found, columns[name]) for name, found in rows.items()}


def _table(
    batch: Batch, name: str, rows: _Rows, columns: Callable[[Batch, _Rows], dict[str, Any]]
) -> pa.Table:
    schema = SCHEMAS[name]
    if not rows:
        return schema.empty_table()
    values = _origin(batch, [index for index, _ in rows]) | columns(batch, rows)
    arrays = [
        values[field.name]
        if isinstance(values[field.name], pa.Array)
        else pa.array(values[field.name], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _origin(batch: Batch, indices: list[int]) -> dict[str, Any]:
    count = len(indices)
    at = np.asarray(indices)
    names = [run.name for run in batch.runs]
    codes = np.searchsorted([run.start for run in batch.runs], at, side="right") - 1
    return {
        "server": _constant(batch.server, count),
        "log": _constant(batch.log, count),
        "segment": pa.array(names, pa.string()).take(pa.array(codes)),
        "sequence": pa.array(np.asarray(batch.sequences, np.int64)[at]),
    }


def _constant(text: str, count: int) -> pa.Array:
    return pa.array([text], pa.string()).take(pa.array(np.zeros(count, np.int64)))


def _hours(times_us: Sequence[int]) -> pa.Array:
    """Return the partition of each time in microseconds, for example ``2026-11-01T09``, in UTC."""
    hours, codes = np.unique(np.asarray(times_us, np.int64) // _HOUR_US, return_inverse=True)
    names = np.datetime_as_string(hours.astype("datetime64[h]"))
    return pa.array(names.tolist(), pa.string()).take(pa.array(codes))


def _times(times_us: Iterable[int]) -> pa.Array:
    return pa.array(np.fromiter(times_us, np.int64), pa.int64()).cast(TIME)


def _floats(parts: Sequence[bytes], kind: str, item: int) -> pa.Array:
    """Return lists of numbers from their packed bytes."""
    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)) // item, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.frombuffer(b"".join(parts), kind)))


def _decisions(batch: Batch, rows: _Rows) -> dict[str, Any]:
    records = [record for _, record in rows]
    times = [record.decided_at_us for record in records]
    return _decision(records) | {
        "hour": _hours(times),
        "decided_at": _times(times),
        "fallback_source": [record.fallback_source or None for record in records],
        "fallback_reason": [record.fallback_reason or None for record in records],
    }


def _decision(records: Sequence[Any], *, action: Sequence[bool] | None = None) -> dict[str, Any]:
    """Return the columns that decisions and observations share.

    Args:
        records: The decisions.
        action: Whether each decision chose an action; None: those with a pmf or an action did.
    """
    is_action = [bool(one.pmf or one.action) for one in records] if action is None else action
    paired = list(zip(records, is_action, strict=True))
    return {
        "decision_id": [one.decision_id for one in records],
        "checkpoint": [one.checkpoint or None for one in records],
        "kind": ["action" if yes else "score" for yes in is_action],
        "lane": [one.lane for one in records],
        "lane_table": [one.lane_table for one in records],
        "bundle": _digests([one.bundle for one in records]),
        "entity": [one.entity for one in records],
        "schema_fingerprint": _fingerprints([one.schema_fingerprint for one in records]),
        "margin": [None if yes else one.margin for one, yes in paired],
        "score": [None if yes else one.score for one, yes in paired],
        "decision": [None if yes else one.decision for one, yes in paired],
        "action_index": [one.action_index if yes else None for one, yes in paired],
        "action": [one.action if yes else None for one, yes in paired],
        "propensity": [one.propensity if yes else None for one, yes in paired],
        "expected_reward": [one.expected_reward if yes else None for one, yes in paired],
        "data_load_us": [one.data_load_us for one in records],
        "exec_us": [one.exec_us for one in records],
        "features": _floats([one.features for one in records], "<f4", 4),
        "withheld": [list(one.withheld) for one in records],
        "sealed": [one.sealed.SerializeToString() if one.HasField("sealed") else None for one in records],
        "eligible": _masks([one.eligible_mask for one in records], records, is_action),
        "pmf": _nullable(_floats([one.pmf for one in records], "<f8", 8), is_action),
        "reasons": [list(one.reasons) for one in records],
        "feature_reasons": [feature_reasons(one) for one in records],
        **_rules(records, is_action),
        "linked_checkpoint": [one.linked_checkpoint or None for one in records],
        "features_defaulted": [one.features_defaulted or None for one in records],
        "stated_features": [list(one.stated_features) for one in records],
        "features_at": [one.features_at_us or None for one in records],
        "faulted_functions": [list(one.faulted_functions) for one in records],
    }


def _rules(records: Sequence[Any], is_action: Sequence[bool]) -> dict[str, Any]:
    """Return the columns about rules, which are null for bundles without rules."""
    ruled = [one.HasField("rules") for one in records]
    asked = [yes and of for yes, of in zip(is_action, ruled, strict=True)]
    return {
        "rules": [fired_rules(one) for one in records],
        "ruled_score": [
            None if yes else ruled_score(one) for one, yes in zip(records, is_action, strict=True)
        ],
        "queue": [one.rules.queue or None for one in records],
        "applied_rules": [
            one.rules.SerializeToString() if of else None for one, of in zip(records, ruled, strict=True)
        ],
        "requested": _masks([one.requested_mask for one in records], records, asked),
    }


def _digests(raw: Sequence[bytes]) -> pa.Array:
    return _by_value(raw, digest_text)


def _fingerprints(values: Sequence[int]) -> pa.Array:
    return _by_value(values, lambda value: f"{value:016x}")


def _by_value(values: Sequence[Any], text: Callable[[Any], str]) -> pa.Array:
    """Return texts of values among which few are distinct."""
    distinct = {value: code for code, value in enumerate(dict.fromkeys(values))}
    codes = np.fromiter((distinct[value] for value in values), np.int64, len(values))
    return pa.array([text(value) for value in distinct], pa.string()).take(pa.array(codes))


def _nullable(lists: pa.ListArray, present: Sequence[bool]) -> pa.Array:
    """Return lists of which those that are not present are null."""
    if all(present):
        return lists
    mask = pa.array(~np.asarray(present, bool))
    return pa.ListArray.from_arrays(lists.offsets, lists.values, mask=mask)


def _masks(masks: Sequence[bytes], records: Sequence[Any], present: Sequence[bool]) -> pa.Array:
    """Return masks of actions as lists of flags, of which those that are not present are null."""
    known: dict[tuple[bytes, int], npt.NDArray[np.bool_]] = {}
    parts: list[npt.NDArray[np.bool_]] = []
    nothing = np.zeros(0, bool)
    for mask, one, yes in zip(masks, records, present, strict=True):
        key = (mask, len(one.pmf) // 8)
        part = nothing
        if yes and (part := known.get(key, nothing)) is nothing:
            part = known[key] = eligible_actions(*key)
        parts.append(part)
    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(parts)))
    return _nullable(lists, present)


def _outcomes(batch: Batch, rows: _Rows) -> dict[str, Any]:
    records = [record for _, record in rows]
    times = [record.received_at_us for record in records]
    sources = [source_columns(record.source) for record in records]
    return {
        "hour": _hours(times),
        "received_at": _times(times),
        "occurred_at": [record.occurred_at_ms * 1000 or None for record in records],
        "checkpoint": [record.checkpoint or None for record in records],
        "decision_id": [record.decision_id for record in records],
        "kind": [record.kind for record in records],
        "value": [record.value for record in records],
        "revision": [record.revision for record in records],
        "proof": [proof_in_words(record.proof) for record in records],
        "token": [
            record.token.SerializeToString() if record.HasField("token") else None for record in records
        ],
        "source": [kind for kind, _ in sources],
        "source_id": [identifier for _, identifier in sources],
    }


def _observations(batch: Batch, rows: _Rows) -> dict[str, Any]:
    records = [record for _, record in rows]
    action = [bool(one.decision.pmf or one.decision.action or one.live_action) for one in records]
    paired = list(zip(records, action, strict=True))
    values = _decision([one.decision for one in records], action=action)
    for name in ("margin", "score", "decision", "action_index", "action", "propensity", "expected_reward"):
        # A failed observation is logged with zeros, which are not results.
        values[name] = [
            None if one.error else value for value, one in zip(values[name], records, strict=True)
        ]
    times = [one.answered_at_us for one in records]
    return values | {
        "hour": _hours(times),
        "answered_at": _times(times),
        "observed_at": _times(one.decision.decided_at_us for one in records),
        "lag_us": [one.lag_us for one in records],
        "error": [one.error or None for one in records],
        "live_lane": [one.live_lane for one in records],
        "live_bundle": _digests([one.live_bundle for one in records]),
        "live_margin": [None if yes else one.live_margin for one, yes in paired],
        "live_score": [None if yes else one.live_score for one, yes in paired],
        "live_decision": [None if yes else one.live_decision for one, yes in paired],
        "live_action": [one.live_action if yes else None for one, yes in paired],
        "live_propensity": [one.live_propensity if yes else None for one, yes in paired],
        "live_expected_reward": [one.live_expected_reward if yes else None for one, yes in paired],
        "live_fallback_reason": [one.live_fallback_reason or None for one in records],
        "live_data_load_us": [one.live_data_load_us for one in records],
        "live_exec_us": [one.live_exec_us for one in records],
        "absent_features": [list(one.absent_features) for one in records],
    }


def _events(batch: Batch, rows: _Rows) -> dict[str, Any]:
    kinds = [kind_of(batch.payloads[index]) for index, _ in rows]
    own: list[Any] = [
        None if kind == UNKNOWN else getattr(record, kind)
        for kind, (_, record) in zip(kinds, rows, strict=True)
    ]
    times = [_time_of_event(kind, record) for kind, record in zip(kinds, own, strict=True)]
    now = time.time_ns() // 1000
    return {
        # A record without a time belongs to the hour in which it is shipped.
        "hour": _hours([now if at is None else at for at in times]),
        "at": times,
        "kind": kinds,
        "checkpoint": [getattr(record, "checkpoint", "") or None for record in own],
        "decision_id": [getattr(record, "decision_id", "") or None for record in own],
        "withdrawn_sequence": [
            record.sequence if kind == "withdrawn" else None for kind, record in zip(kinds, own, strict=True)
        ],
        "delivered": [
            record.delivered if kind == "delivery" else None for kind, record in zip(kinds, own, strict=True)
        ],
        "record": [batch.payloads[index] for index, _ in rows],
    }


def _time_of_event(kind: str, record: Any) -> int | None:
    if kind in {"delivery", "recovery"}:
        return int(record.at_us)
    return int(record.since_us) if kind == "lane_table" else None
