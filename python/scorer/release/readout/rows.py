"""Conversion of log records to rows of parts."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from scorer.ids import decision_key, digest_text, eligible_actions
from scorer.release.gates.evidence import DIFFERENT, EQUAL, UNKNOWN
from scorer.release.readout.schemas import Schemas

if TYPE_CHECKING:
    from scorer.v1.log_pb2 import DecisionRecord, ObservationRecord, OutcomeRecord

_REMEMBERED = 50_000
_REMEMBERED_BYTES = 32 << 20
_ENTRY_BYTES = 300
"""Memory of a decision's key and table entry, in addition to its encoded bytes."""


class RecentDecisions:
    """The latest responses, for the observations that follow them.

    Decisions are held as they are encoded in the log: a parsed one takes several times the memory, and few
    are requested. The oldest are dropped.

    Args:
        most: Largest number of decisions.
        most_bytes: Largest memory; reached first where decisions carry the probabilities of many actions.
    """

    def __init__(self, most: int = _REMEMBERED, most_bytes: int = _REMEMBERED_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._by_id: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._bytes = 0

    def add(self, decision: DecisionRecord) -> None:
        """Add a response, and drop the oldest ones beyond either limit."""
        key = decision.checkpoint, decision.decision_id
        self._bytes -= self._size(self._by_id.pop(key, None))
        encoded = self._by_id[key] = decision.SerializeToString()
        self._bytes += self._size(encoded)
        while len(self._by_id) > self._most or self._bytes > self._most_bytes:
            self._bytes -= self._size(self._by_id.popitem(last=False)[1])

    def of(self, checkpoint: str, decision_id: str) -> tuple[str, Any, Any] | None:
        """Return digest, features and action probabilities of a response; None: it was dropped."""
        from scorer.v1.log_pb2 import DecisionRecord

        encoded = self._by_id.get((checkpoint, decision_id))
        if encoded is None:
            return None
        found = DecisionRecord.FromString(encoded)
        pmf = np.array(found.pmf) if found.pmf else None
        return digest_text(found.bundle), np.array(found.features, dtype=np.float32), pmf

    @staticmethod
    def _size(encoded: bytes | None) -> int:
        return 0 if encoded is None else len(encoded) + _ENTRY_BYTES


def observation_row(
    sequence: int, record: ObservationRecord, remembered: RecentDecisions, schemas: Schemas
) -> dict[str, Any]:
    """Return an observation as a row of a part, with comparisons to the answer of its decision."""
    own = record.decision
    digest, live_digest = digest_text(own.bundle), digest_text(record.live_bundle)
    is_action = bool(own.pmf or own.action or record.live_action)
    found = remembered.of(own.checkpoint, own.decision_id)
    features = np.array(own.features, dtype=np.float32)
    row: dict[str, Any] = {
        "sequence": sequence,
        "decision_id": own.decision_id,
        "key": decision_key(own.decision_id),
        "at": record.answered_at_us or own.decided_at_us,
        "bundle": digest,
        "live_lane": record.live_lane,
        "live_bundle": live_digest,
        "score": own.expected_reward if is_action else own.score,
        "live_score": record.live_expected_reward if is_action else record.live_score,
        "label": own.action if is_action else own.decision,
        "live_label": record.live_action if is_action else record.live_decision,
        "error": record.error,
        "live_fallback": record.live_fallback_reason,
        "exec_us": own.exec_us,
        "load_us": own.data_load_us,
        "live_exec_us": record.live_exec_us,
        "live_load_us": record.live_data_load_us,
        "lag_us": record.lag_us,
        "absent": len(record.absent_features),
        "differs": UNKNOWN,
        "different": "",
        "features": features.tobytes(),
        "eligible": own.eligible_mask,
    }
    if record.error:
        row["score"] = float("nan")
    if found is not None:
        _compare(row, found, features, list(record.absent_features), schemas)
    if is_action and not record.error:
        row |= _action(record, found, schemas)
    return row


def answer_row(sequence: int, decision: DecisionRecord) -> dict[str, Any]:
    """Return an answer as a row of a part, for a canary."""
    is_action = bool(decision.pmf or decision.action)
    return {
        "sequence": sequence,
        "key": decision_key(decision.decision_id),
        "at": decision.decided_at_us,
        "lane": decision.lane,
        "bundle": digest_text(decision.bundle),
        "score": decision.expected_reward if is_action else decision.score,
        "label": decision.action if is_action else decision.decision,
        "fallback": decision.fallback_reason,
        "exec_us": decision.exec_us,
        "load_us": decision.data_load_us,
    }


def feature_bytes(decision: DecisionRecord) -> bytes:
    """Return the features of a decision as a row of float32."""
    return np.array(decision.features, dtype=np.float32).tobytes()


def outcome_row(sequence: int, outcome: OutcomeRecord) -> dict[str, Any]:
    """Return a reported outcome as a row of a part."""
    return {
        "sequence": sequence,
        "key": decision_key(outcome.decision_id),
        "kind": outcome.kind,
        "value": outcome.value,
        "revision": outcome.revision,
        "proof": outcome.proof,
        "received_at": outcome.received_at_us,
    }


def _compare(
    row: dict[str, Any], found: tuple[str, Any, Any], features: Any, absent: list[int], schemas: Schemas
) -> None:
    live_digest, live, _ = found
    comparison = schemas.comparison(live_digest, row["bundle"])
    if comparison is None or len(features) != len(comparison.own) or len(live) != len(comparison.live):
        return
    # A feature that the request did not contain and that was missing for the live bundle too does not differ.
    lacking = comparison.lacking(absent, live)
    different = comparison.different(live, features)
    row["absent"] = len(lacking)
    row["differs"] = DIFFERENT if different else EQUAL
    if places := sorted({*different, *lacking}):
        row["different"] = json.dumps(comparison.told(places, live, features))


def _action(
    record: ObservationRecord, found: tuple[str, Any, Any] | None, schemas: Schemas
) -> dict[str, Any]:
    own = record.decision
    pmf = np.array(own.pmf)
    actions = schemas.actions(digest_text(own.bundle))
    row: dict[str, Any] = {"propensity": own.propensity, "live_propensity": record.live_propensity}
    if len(pmf) != len(actions) or not len(pmf):
        return row
    eligible = eligible_actions(own.eligible_mask, len(pmf))
    row["least"] = float(pmf[eligible].min()) if eligible.any() else None
    row["top"] = actions[int(pmf.argmax())]
    place = {action: at for at, action in enumerate(actions)}
    if record.live_action and record.live_propensity > 0:
        at = place.get(record.live_action)
        # An action that this bundle does not have has probability 0.
        row["ratio"] = 0.0 if at is None else float(pmf[at]) / record.live_propensity
    if found is not None and found[2] is not None:
        names = schemas.actions(found[0])
        if len(names) == len(found[2]):
            live = dict(zip(names, found[2].tolist(), strict=True))
            ours = dict(zip(actions, pmf.tolist(), strict=True))
            both = {*live, *ours}
            row["distance"] = sum(abs(live.get(one, 0.0) - ours.get(one, 0.0)) for one in both) / 2
            row["live_top"] = names[int(found[2].argmax())]
    return row
