"""Arrow tables of decisions and outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from scorer.ids import digest_text, eligible_actions
from scorer.log.outcomes import OutcomeJoin, Reported
from scorer.log.proof import proof_in_words

if TYPE_CHECKING:
    from scorer.log.bundles import BundleShelf
    from scorer.v1.log_pb2 import DecisionRecord, ObservationRecord

TIME = pa.timestamp("us", tz="UTC")
NAMES = pa.dictionary(pa.int32(), pa.string())

OUTCOMES = pa.schema(
    [
        ("checkpoint", NAMES),
        ("decision_id", pa.string()),
        ("kind", NAMES),
        ("value", pa.float64()),
        ("revision", pa.uint32()),
        ("occurred_at", TIME),
        ("received_at", TIME),
        ("sequence", pa.uint64()),
        ("counts", pa.bool_()),
        ("proof", NAMES),
    ]
)


@dataclass
class ExportLayout:
    """What the columns of an export depend on, gathered before the first row is written."""

    widths: set[int] = field(default_factory=set)
    """Lengths of the feature rows."""
    features: dict[str, Sequence[str]] = field(default_factory=dict)
    """Feature names by digest, where the bundle is known."""
    kinds: Sequence[str] = ()
    """Kinds of outcomes."""

    @property
    def names(self) -> list[str]:
        """Every feature name once, in order of appearance."""
        return list(dict.fromkeys(name for names in self.features.values() for name in names))

    def add(self, decision: DecisionRecord, bundles: BundleShelf | None) -> str | None:
        """Takes a row of the table to come into account; the digest of its bundle where that is not known."""
        self.widths.add(len(decision.features))
        digest = digest_of(decision)
        if digest not in self.features:
            names = bundles.feature_names(digest) if bundles is not None else None
            if names is None:
                return digest
            self.features[digest] = names
        return None

    @property
    def own_columns(self) -> list[tuple[str, Any]]:
        """Columns of what a bundle said, its features last but those by name."""
        width = next(iter(self.widths)) if len(self.widths) == 1 else 0
        return [
            ("sequence", pa.uint64()),
            ("decision_id", pa.string()),
            ("checkpoint", NAMES),
            ("kind", NAMES),
            ("lane", NAMES),
            ("lane_table", pa.uint64()),
            ("bundle", NAMES),
            ("decided_at", TIME),
            ("entity", pa.string()),
            ("schema_fingerprint", pa.uint64()),
            # One width: a fixed-size list, an array to DuckDB.
            ("features", pa.list_(pa.float32(), width or -1)),
            ("withheld", pa.list_(pa.uint32())),
            ("margin", pa.float64()),
            ("score", pa.float64()),
            ("decision", NAMES),
            ("eligible", pa.list_(pa.bool_())),
            ("pmf", pa.list_(pa.float64())),
            ("action_index", pa.uint32()),
            ("action", NAMES),
            ("propensity", pa.float64()),
            ("expected_reward", pa.float64()),
            ("fallback_source", NAMES),
            ("fallback_reason", NAMES),
            ("reasons", pa.list_(pa.string())),
            ("data_load_us", pa.uint32()),
            ("exec_us", pa.uint32()),
        ]

    @property
    def feature_columns(self) -> list[tuple[str, Any]]:
        """A column for each feature that is known by name."""
        return [(f"feature_{name}", pa.float32()) for name in self.names]

    @property
    def schema(self) -> pa.Schema:
        """Columns of the decisions' table."""
        columns = self.own_columns + self.feature_columns
        for kind in self.kinds:
            columns += [
                (f"outcome_{kind}", pa.float64()),
                (f"outcome_{kind}_revision", pa.uint32()),
                (f"outcome_{kind}_occurred_at", TIME),
            ]
        return pa.schema(columns)


def decisions_batch(
    rows: Sequence[tuple[int, DecisionRecord]], layout: ExportLayout, outcomes: OutcomeJoin
) -> pa.RecordBatch:
    """One batch of the decisions' table."""
    columns = own_values(rows, layout)
    columns |= _outcome_columns([decision for _, decision in rows], layout, outcomes)
    return batch_of(columns, layout.schema)


def own_values(rows: Sequence[tuple[int, DecisionRecord]], layout: ExportLayout) -> dict[str, Any]:
    """Values of the `own_columns` and `feature_columns`, by column."""
    decisions = [decision for _, decision in rows]
    action = [is_action(decision) for decision in decisions]

    def only(wanted: bool, name: str) -> list[Any]:
        chosen = zip(decisions, action, strict=True)
        return [getattr(one, name) if is_action is wanted else None for one, is_action in chosen]

    columns: dict[str, Any] = {
        "sequence": [sequence for sequence, _ in rows],
        "kind": ["action" if yes else "score" for yes in action],
        "bundle": [digest_of(decision) for decision in decisions],
        "decided_at": [decision.decided_at_us for decision in decisions],
        "features": [list(decision.features) for decision in decisions],
        "withheld": [list(decision.withheld) for decision in decisions],
        "eligible": [eligible(one) if yes else None for one, yes in zip(decisions, action, strict=True)],
        "reasons": [list(decision.reasons) for decision in decisions],
        "pmf": [list(one.pmf) if yes else None for one, yes in zip(decisions, action, strict=True)],
    }
    for name in ("margin", "score", "decision"):
        columns[name] = only(False, name)
    for name in ("action_index", "action", "propensity", "expected_reward"):
        columns[name] = only(True, name)
    for name in (
        "decision_id",
        "checkpoint",
        "lane",
        "lane_table",
        "entity",
        "schema_fingerprint",
        "data_load_us",
        "exec_us",
    ):
        columns[name] = [getattr(decision, name) for decision in decisions]
    for name in ("fallback_source", "fallback_reason"):
        columns[name] = [getattr(decision, name) or None for decision in decisions]
    return columns | _named_features(decisions, layout)


def batch_of(columns: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """Columns in a schema's order; those that it does not have are left out."""
    arrays = [_array(columns[column.name], column.type) for column in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def outcomes_batch(rows: Sequence[tuple[str, str, str, Reported, bool]]) -> pa.RecordBatch:
    """One batch of the outcomes' table: every revision, and which one counts."""
    reports = [report for _, _, _, report, _ in rows]
    columns = {
        "checkpoint": [row[0] for row in rows],
        "decision_id": [row[1] for row in rows],
        "kind": [row[2] for row in rows],
        "value": [report.value for report in reports],
        "revision": [report.revision for report in reports],
        "occurred_at": [_occurred(report) for report in reports],
        "received_at": [report.received_at_us for report in reports],
        "sequence": [report.sequence for report in reports],
        "counts": [row[4] for row in rows],
        "proof": [proof_in_words(report.proof) for report in reports],
    }
    return batch_of(columns, OUTCOMES)


def is_action(decision: DecisionRecord) -> bool:
    """Whether an action was chosen, rather than a score given."""
    return bool(decision.pmf or decision.action)


def digest_of(decision: DecisionRecord) -> str:
    """``sha256:`` and 64 hexadecimal digits."""
    return digest_text(decision.bundle)


def eligible(decision: DecisionRecord) -> list[bool]:
    """The eligible actions over the catalogue; no mask in the record means all of them."""
    bits: list[bool] = eligible_actions(decision.eligible_mask, len(decision.pmf)).tolist()
    return bits


def _named_features(decisions: Sequence[DecisionRecord], layout: ExportLayout) -> dict[str, Any]:
    values = {name: np.zeros(len(decisions), np.float32) for name in layout.names}
    absent = {name: np.ones(len(decisions), bool) for name in layout.names}
    for at, decision in enumerate(decisions):
        names = layout.features.get(digest_of(decision), ())
        for name, value in zip(names, decision.features, strict=False):
            values[name][at] = value
            absent[name][at] = False
        for place in decision.withheld:
            if place < len(names):
                absent[names[place]][at] = True
    # NaN is a missing value as the model saw it; null, a withheld value, or a feature that this bundle lacks.
    return {f"feature_{name}": pa.array(values[name], mask=absent[name]) for name in layout.names}


def _outcome_columns(
    decisions: Sequence[DecisionRecord], layout: ExportLayout, outcomes: OutcomeJoin
) -> dict[str, Any]:
    known: list[Mapping[str, Reported]] = [
        outcomes.of(decision.checkpoint, decision.decision_id) for decision in decisions
    ]
    columns: dict[str, Any] = {}
    for kind in layout.kinds:
        reports = [one.get(kind) for one in known]
        columns[f"outcome_{kind}"] = [report and report.value for report in reports]
        columns[f"outcome_{kind}_revision"] = [report and report.revision for report in reports]
        columns[f"outcome_{kind}_occurred_at"] = [report and _occurred(report) for report in reports]
    return columns


def _occurred(report: Reported) -> int | None:
    return report.occurred_at_ms * 1000 or None


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, type=kind)


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
