"""Arrow tables of decisions, outcomes and observations."""

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

# `ReasonDirection.REASON_DIRECTION_RAISES`, without importing the generated code.
_RAISES = 1

TIME = pa.timestamp("us", tz="UTC")
NAMES = pa.dictionary(pa.int32(), pa.string())

FEATURE_REASONS = pa.list_(
    pa.struct(
        [
            ("code", pa.string()),
            ("feature", pa.string()),
            ("contribution", pa.float64()),
            ("raises", pa.bool_()),
        ]
    )
)
"""Type of the features that contribute most to a decision's score."""

FIRED_RULES = pa.list_(pa.struct([("id", pa.string()), ("reason", pa.string())]))
"""Type of the rules that had an effect on a decision."""

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
        ("source", NAMES),
        ("source_id", pa.string()),
    ]
)


@dataclass
class ExportLayout:
    """The facts that determine the columns of an export, collected before the first row is written."""

    widths: set[int] = field(default_factory=set)
    """All numbers of features that decisions have."""
    features: dict[str, Sequence[str]] = field(default_factory=dict)
    """Feature names by digest, for the bundles that are known."""
    kinds: Sequence[str] = ()
    """Kinds of outcomes."""

    @property
    def names(self) -> list[str]:
        """All feature names without repetitions, in order of appearance."""
        return list(dict.fromkeys(name for names in self.features.values() for name in names))

    def add(self, decision: DecisionRecord, bundles: BundleShelf | None) -> str | None:
        """Take a decision into account. Return the digest of its bundle if the bundle is not known."""
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
        """Names and types of the columns that do not depend on feature names and outcomes."""
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
            # If all rows have the same width, a fixed-size list is used, which DuckDB reads as an array.
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
            ("feature_reasons", FEATURE_REASONS),
            ("rules", FIRED_RULES),
            ("ruled_score", pa.float64()),
            ("queue", NAMES),
            ("faulted_functions", pa.list_(pa.string())),
            ("data_load_us", pa.uint32()),
            ("exec_us", pa.uint32()),
        ]

    @property
    def feature_columns(self) -> list[tuple[str, Any]]:
        """Names and types of the columns of the features whose names are known."""
        return [(f"feature_{name}", pa.float32()) for name in self.names]

    @property
    def schema(self) -> pa.Schema:
        """Schema of the table of decisions."""
        columns = self.own_columns + self.feature_columns
        for kind in self.kinds:
            columns += [
                (f"outcome_{kind}", pa.float64()),
                (f"outcome_{kind}_revision", pa.uint32()),
                (f"outcome_{kind}_occurred_at", TIME),
                (f"outcome_{kind}_source", NAMES),
            ]
        return pa.schema(columns)


def decisions_batch(
    rows: Sequence[tuple[int, DecisionRecord]], layout: ExportLayout, outcomes: OutcomeJoin
) -> pa.RecordBatch:
    """Return a batch of the table of decisions.

    Args:
        rows: Sequences and decisions.
        layout: The layout of the table.
        outcomes: The outcomes of the log.
    """
    columns = own_values(rows, layout)
    columns |= _outcome_columns([decision for _, decision in rows], layout, outcomes)
    return batch_of(columns, layout.schema)


def own_values(rows: Sequence[tuple[int, DecisionRecord]], layout: ExportLayout) -> dict[str, Any]:
    """Return the values of the columns `own_columns` and `feature_columns`, by the name of the column."""
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
        "feature_reasons": [feature_reasons(decision) for decision in decisions],
        "rules": [fired_rules(decision) for decision in decisions],
        "ruled_score": [
            None if yes else ruled_score(one) for one, yes in zip(decisions, action, strict=True)
        ],
        "queue": [one.rules.queue or None for one in decisions],
        "faulted_functions": [list(one.faulted_functions) for one in decisions],
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


def feature_reasons(decision: DecisionRecord) -> list[dict[str, Any]]:
    """Return the features that contribute most to a decision's score, as recorded.

    The contribution of a sensitive feature is not recorded; it is None.

    Args:
        decision: The decision.
    """
    return [
        {
            "code": one.code,
            "feature": one.feature,
            "contribution": one.contribution or None,
            "raises": one.direction == _RAISES,
        }
        for one in decision.feature_reasons
    ]


def fired_rules(decision: DecisionRecord) -> list[dict[str, Any]] | None:
    """Return the rules that had an effect on a decision, as recorded; None if its bundle has no rules.

    Args:
        decision: The decision.
    """
    if not decision.HasField("rules"):
        return None
    return [{"id": one.id, "reason": one.reason or None} for one in decision.rules.fired]


def ruled_score(decision: DecisionRecord) -> float | None:
    """Return the score within the caps and floors of the rules; None if the bundle has no rules.

    Args:
        decision: A decision of kind "score".
    """
    return decision.rules.score if decision.HasField("rules") else None


def batch_of(columns: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """Return a record batch with the columns of a schema. Other columns are ignored."""
    arrays = [_array(columns[column.name], column.type) for column in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def outcomes_batch(rows: Sequence[tuple[str, str, str, Reported, bool]]) -> pa.RecordBatch:
    """Return a batch of the table of outcomes, with one row per revision.

    Args:
        rows: Values that iterating over an `OutcomeJoin` yields.
    """
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
        "source": [report.source for report in reports],
        "source_id": [report.source_id or None for report in reports],
    }
    return batch_of(columns, OUTCOMES)


def is_action(decision: DecisionRecord) -> bool:
    """Return whether a decision chose an action. Otherwise it is a score."""
    return bool(decision.pmf or decision.action)


def digest_of(decision: DecisionRecord) -> str:
    """Return the digest of a decision's bundle: ``sha256:`` and 64 hexadecimal digits."""
    return digest_text(decision.bundle)


def eligible(decision: DecisionRecord) -> list[bool]:
    """Return whether each action of the catalogue was eligible. No mask in the record means all of them."""
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
    # NaN is a value that was missing in the request. Null is a withheld value, or a feature that the
    # decision's bundle does not have.
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
        columns[f"outcome_{kind}_source"] = [report and report.source for report in reports]
    return columns


def _occurred(report: Reported) -> int | None:
    return report.occurred_at_ms * 1000 or None


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, type=kind)


# Columns of decisions that have no meaning for observations, which did not answer a request.
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
    """Return the schema of the table of observations.

    Args:
        layout: The layout of the observations, without the decisions.
    """
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
    """Return a batch of the table of observations.

    Args:
        rows: Sequences and observations.
        layout: The layout of the observations.
    """
    records = [record for _, record in rows]
    columns = own_values([(sequence, record.decision) for sequence, record in rows], layout)
    action = [is_action_observed(record) for record in records]
    failed = [bool(record.error) for record in records]
    columns["kind"] = ["action" if yes else "score" for yes in action]
    for name in ("margin", "score", "decision", "action_index", "action", "propensity", "expected_reward"):
        # A failed observation is logged with zeros, which are not results.
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
    """Return whether an observation is of an action, even if the observing lane failed to choose one."""
    return is_action(record.decision) or bool(record.live_action)
