"""The Arrow table of observations: what observe lanes would have answered, beside what was answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from scorer.ids import digest_text
from scorer.log.tables import NAMES, TIME, ExportLayout, batch_of, is_action, own_values

if TYPE_CHECKING:
    from scorer.v1.log_pb2 import ObservationRecord

# Of a decision, and what has no meaning where nobody was answered.
_NOT_OBSERVED = ("decided_at", "fallback_source", "fallback_reason")

_LIVE: list[tuple[str, Any]] = [
    ("live_lane", NAMES),
    ("live_bundle", NAMES),
    ("live_margin", pa.float64()),
    ("live_score", pa.float64()),
    ("live_decision", NAMES),
    ("live_action", NAMES),
    ("live_propensity", pa.float64()),
    ("live_expected_reward", pa.float64()),
    ("live_fallback_reason", NAMES),
    ("live_data_load_us", pa.uint32()),
    ("live_exec_us", pa.uint32()),
]


def observations_schema(layout: ExportLayout) -> pa.Schema:
    """Columns of the observations' table; `layout` is of the observations alone."""
    own = [column for column in layout.own_columns if column[0] not in _NOT_OBSERVED]
    about: list[tuple[str, Any]] = [
        ("answered_at", TIME),
        ("observed_at", TIME),
        ("lag_us", pa.uint32()),
        ("error", NAMES),
        ("absent_features", pa.list_(pa.uint32())),
    ]
    return pa.schema([*own, *about, *_LIVE, *layout.feature_columns])


def observations_batch(rows: Sequence[tuple[int, ObservationRecord]], layout: ExportLayout) -> pa.RecordBatch:
    """One batch of the observations' table."""
    records = [record for _, record in rows]
    columns = own_values([(sequence, record.decision) for sequence, record in rows], layout)
    action = [is_action_observed(record) for record in records]
    failed = [bool(record.error) for record in records]
    columns["kind"] = ["action" if yes else "score" for yes in action]
    for name in ("margin", "score", "decision", "action_index", "action", "propensity", "expected_reward"):
        # Zeros that were logged for want of a result are no results.
        columns[name] = [None if no else value for value, no in zip(columns[name], failed, strict=True)]
    columns |= {
        "answered_at": [record.answered_at_us for record in records],
        "observed_at": [record.decision.decided_at_us for record in records],
        "lag_us": [record.lag_us for record in records],
        "error": [record.error or None for record in records],
        "absent_features": [list(record.absent_features) for record in records],
        "live_lane": [record.live_lane for record in records],
        "live_bundle": [digest_text(record.live_bundle) for record in records],
        "live_fallback_reason": [record.live_fallback_reason or None for record in records],
        "live_data_load_us": [record.live_data_load_us for record in records],
        "live_exec_us": [record.live_exec_us for record in records],
    }
    for wanted, names in (
        (False, ("live_margin", "live_score", "live_decision")),
        (True, ("live_action", "live_propensity", "live_expected_reward")),
    ):
        for name in names:
            pairs = zip(records, action, strict=True)
            columns[name] = [getattr(one, name) if yes is wanted else None for one, yes in pairs]
    return batch_of(columns, observations_schema(layout))


def is_action_observed(record: ObservationRecord) -> bool:
    """Whether actions were chosen from, also where the observing lane came to no choice."""
    return is_action(record.decision) or bool(record.live_action)
