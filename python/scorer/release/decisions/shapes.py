"""Conversion of records to JSON values for display, with names instead of digests and codes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from scorer.ids import digest_text
from scorer.log.outcomes import OutcomeJoin
from scorer.log.proof import is_proven, proof_in_words
from scorer.log.tables import digest_of, eligible, feature_reasons, fired_rules, is_action

if TYPE_CHECKING:
    from scorer.bundle import Action, SchemaFile
    from scorer.release.requests import DecisionFilter
    from scorer.v1.log_pb2 import DecisionRecord, ObservationRecord

_SHARED = ("decision_id", "checkpoint", "lane", "lane_table", "entity", "data_load_us", "exec_us")


def decision_shape(record: DecisionRecord, server: str) -> dict[str, Any]:
    """Convert a decision: its subject, answer, lane, bundle and times."""
    fallback = {"fallback_source": record.fallback_source, "fallback_reason": record.fallback_reason}
    return {
        **_common(record, server, is_action(record)),
        **fallback,
        "reasons": list(record.reasons),
        "feature_reasons": feature_reasons(record),
        "rules": fired_rules(record),
        "ruled_score": record.rules.score if record.HasField("rules") and not is_action(record) else None,
        "queue": record.rules.queue or None,
        "decided_at": _at(record.decided_at_us),
    }


def matches(record: DecisionRecord, asked: DecisionFilter) -> bool:
    """Whether a decision matches a filter, apart from its time and its outcome."""
    chose = is_action(record)
    told = record.action if chose else record.decision
    value = record.expected_reward if chose else record.score
    return (
        (asked.lane is None or record.lane == asked.lane)
        and (asked.decision is None or told == asked.decision)
        and (asked.entity is None or record.entity == asked.entity)
        and (asked.low is None or value >= asked.low)
        and (asked.high is None or value <= asked.high)
    )


def observation_shape(record: ObservationRecord, server: str) -> dict[str, Any]:
    """Convert an observation. If the evaluation failed, it has an `error` and no result."""
    chose = is_action(record.decision) or bool(record.live_action)
    shape = _common(record.decision, server, chose)
    if record.error:
        for name in ("margin", "score", "decision", "action", "propensity", "expected_reward"):
            if name in shape:
                shape[name] = None
    live = ("live_action", "live_propensity") if chose else ("live_decision", "live_score")
    told = record.live_action if chose else record.live_decision
    own = shape["action"] if chose else shape["decision"]
    return {
        **shape,
        "observed_at": _at(record.decision.decided_at_us),
        "answered_at": _at(record.answered_at_us),
        "lag_us": record.lag_us,
        "error": record.error,
        "flipped": not record.error and own != told,
        "live_lane": record.live_lane,
        "live_bundle": digest_text(record.live_bundle),
        **{name: _number(getattr(record, name)) for name in live},
    }


def features_shape(
    record: DecisionRecord, schema: SchemaFile | None, absent: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """Return the features of a decision by name, with categories by name and flags as booleans.

    Args:
        record: The decision.
        schema: The schema of its bundle; None: it is unknown.
        absent: Indices of features that the request did not contain.

    Returns:
        One entry per feature, with None for a value that is missing, or withheld because it
        is sensitive. The list is empty if the schema is unknown or
        does not match the record.
    """
    if schema is None or len(schema.features) != len(record.features):
        return []
    shaped = []
    for at, (feature, value) in enumerate(zip(schema.features, record.features, strict=True)):
        shown: Any = _feature(value)
        if shown is not None and feature.type == "flag":
            shown = bool(value)
        elif shown is not None and feature.type == "category":
            code = int(value)
            shown = feature.categories[code] if 0 <= code < len(feature.categories) else shown
        shaped.append(
            {
                "name": feature.name,
                "type": feature.type,
                "value": shown,
                "absent": at in absent,
                "withheld": at in record.withheld,
            }
        )
    return shaped


def choices_shape(record: DecisionRecord, catalogue: Sequence[Action]) -> list[dict[str, Any]]:
    """Return the actions of a decision by descending probability; empty for a score."""
    if not is_action(record) or len(catalogue) != len(record.pmf):
        return []
    rows = zip(catalogue, record.pmf, eligible(record), strict=True)
    shaped = [
        {"action": action.id, "probability": share, "eligible": may, "chosen": at == record.action_index}
        for at, (action, share, may) in enumerate(rows)
    ]
    return sorted(shaped, key=lambda one: (-one["probability"], not one["eligible"], one["action"]))


def outcomes_shape(join: OutcomeJoin, servers: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return every outcome report by revision. `counts` marks the report in force."""
    shaped = [
        {
            "kind": kind,
            "value": _number(report.value),
            "revision": report.revision,
            "counts": counts,
            "proof": proof_in_words(report.proof),
            "proven": is_proven(report.proof),
            "source": report.source,
            "source_id": report.source_id,
            "occurred_at": _at(report.occurred_at_ms * 1000) if report.occurred_at_ms else None,
            "received_at": _at(report.received_at_us),
            "server": servers.get(report.sequence, ""),
        }
        for _, _, kind, report, counts in join
    ]
    return sorted(shaped, key=lambda one: (one["kind"], one["revision"]))


def _common(record: DecisionRecord, server: str, chose: bool) -> dict[str, Any]:
    names = ("action", "propensity", "expected_reward") if chose else ("margin", "score", "decision")
    return {
        **{name: getattr(record, name) for name in _SHARED},
        "kind": "action" if chose else "score",
        "bundle": digest_of(record),
        **{name: _number(getattr(record, name)) for name in names},
        "faulted_functions": list(record.faulted_functions),
        "server": server,
    }


def _at(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, UTC)


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _feature(value: float) -> float | None:
    """Return the number with the fewest digits that rounds to this float32."""
    return None if not math.isfinite(value) else float(str(np.float32(value)))
