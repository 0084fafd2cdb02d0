"""The tables that hold shipped records, and their columns. docs/log-shipping.md describes them."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from scorer.log.tables import FEATURE_REASONS, FIRED_RULES

VERSION: Final = 4
"""Version of the schema. A later version only adds columns. Version 2 has added `feature_reasons`, version 3
`source` and `source_id` of outcomes, version 4 the columns of decisions from `rules` on."""

DECISIONS: Final = "decisions"
OUTCOMES: Final = "outcomes"
OBSERVATIONS: Final = "observations"
EVENTS: Final = "events"

TIME: Final = pa.timestamp("us", tz="UTC")
_TEXT, _NUMBER, _FLAG, _BYTES = pa.string(), pa.int64(), pa.bool_(), pa.binary()

ORIGIN: Final = [
    ("server", _TEXT),
    ("log", _TEXT),
    ("segment", _TEXT),
    ("sequence", _NUMBER),
    ("checkpoint", _TEXT),
    ("hour", _TEXT),
]
"""Columns of every table: where the record is in the log, and the partition."""

PARTITION: Final = ["checkpoint", "hour"]

_DECISION: Final = [
    ("decision_id", _TEXT),
    ("kind", _TEXT),
    ("lane", _TEXT),
    ("lane_table", _NUMBER),
    ("bundle", _TEXT),
    ("entity", _TEXT),
    ("schema_fingerprint", _TEXT),
    ("margin", pa.float64()),
    ("score", pa.float64()),
    ("decision", _TEXT),
    ("action_index", _NUMBER),
    ("action", _TEXT),
    ("propensity", pa.float64()),
    ("expected_reward", pa.float64()),
    ("data_load_us", _NUMBER),
    ("exec_us", _NUMBER),
    ("features", pa.list_(pa.float32())),
    ("withheld", pa.list_(_NUMBER)),
    ("sealed", _BYTES),
    ("eligible", pa.list_(_FLAG)),
    ("pmf", pa.list_(pa.float64())),
    ("reasons", pa.list_(_TEXT)),
    ("feature_reasons", FEATURE_REASONS),
    ("rules", FIRED_RULES),
    ("ruled_score", pa.float64()),
    ("queue", _TEXT),
    ("applied_rules", _BYTES),
    ("requested", pa.list_(_FLAG)),
    ("linked_checkpoint", _TEXT),
    ("features_defaulted", _TEXT),
    ("stated_features", pa.list_(_NUMBER)),
    ("features_at", TIME),
    ("faulted_functions", pa.list_(_TEXT)),
]
"""Columns that decisions and observations share."""

SCHEMAS: Final = {
    OUTCOMES: pa.schema(
        [
            *ORIGIN,
            ("received_at", TIME),
            ("occurred_at", TIME),
            ("decision_id", _TEXT),
            ("kind", _TEXT),
            ("value", pa.float64()),
            ("revision", _NUMBER),
            ("proof", _TEXT),
            ("token", _BYTES),
            ("source", _TEXT),
            ("source_id", _TEXT),
        ]
    ),
    OBSERVATIONS: pa.schema(
        [
            *ORIGIN,
            ("answered_at", TIME),
            ("observed_at", TIME),
            ("lag_us", _NUMBER),
            ("error", _TEXT),
            ("live_lane", _TEXT),
            ("live_bundle", _TEXT),
            ("live_margin", pa.float64()),
            ("live_score", pa.float64()),
            ("live_decision", _TEXT),
            ("live_action", _TEXT),
            ("live_propensity", pa.float64()),
            ("live_expected_reward", pa.float64()),
            ("live_fallback_reason", _TEXT),
            ("live_data_load_us", _NUMBER),
            ("live_exec_us", _NUMBER),
            ("absent_features", pa.list_(_NUMBER)),
            *_DECISION,
        ]
    ),
    EVENTS: pa.schema(
        [
            *ORIGIN,
            ("at", TIME),
            ("kind", _TEXT),
            ("decision_id", _TEXT),
            ("withdrawn_sequence", _NUMBER),
            ("delivered", _FLAG),
            ("record", _BYTES),
        ]
    ),
    DECISIONS: pa.schema(
        [
            *ORIGIN,
            ("decided_at", TIME),
            ("fallback_source", _TEXT),
            ("fallback_reason", _TEXT),
            *_DECISION,
        ]
    ),
}
"""Schema of each table, in the order in which a batch is committed. The last table's position is the
sink's.
"""
