"""Decoding of reply messages into results."""

from __future__ import annotations

from collections.abc import Iterable

import grpc

from scorer.client.errors import ServerFaultError
from scorer.client.flow import Failure
from scorer.client.results import (
    ActionInfo,
    AppliedRules,
    BatchScore,
    CheckpointInfo,
    FeatureInfo,
    FiredRule,
    Health,
    LaneInfo,
    MarginExplanation,
    NodeInfo,
    OutcomeAck,
    PaymentDecision,
    RowExplanation,
    Score,
    ScoreReason,
    SelectedAction,
    Served,
    ThresholdInfo,
)
from scorer.v1 import scoring_pb2 as pb

_NO_ACTION: dict[int, str] = {
    pb.NO_ACTION_UNSPECIFIED: "",
    pb.NO_ACTION_DECLINED: "declined",
    pb.NO_ACTION_FAILED: "failed",
}
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
_HEALTH = (Health.UNKNOWN, Health.SERVING, Health.NOT_SERVING, Health.SERVICE_UNKNOWN)


def _served(message: pb.Served) -> Served:
    return Served(
        bundle=message.bundle,
        lane=message.lane,
        lane_table=message.lane_table,
        fallback_source=message.fallback_source,
        fallback_reason=message.fallback_reason,
        data_load_us=message.data_load_us,
        exec_us=message.exec_us,
        features_defaulted=message.features_defaulted,
        faulted_functions=tuple(message.faulted_functions),
    )


def read_score(reply: bytes, request_id: str) -> Score:
    """Decode a `ScoreResponse` into a `Score`."""
    return _score(pb.ScoreResponse.FromString(reply), request_id)


def _score(message: pb.ScoreResponse, request_id: str) -> Score:
    return Score(
        request_id=request_id,
        decision_id=message.decision_id,
        score=message.score,
        margin=message.margin,
        decision=message.decision,
        served=_served(message.served),
        logged=message.logged,
        decision_token=message.decision_token,
        reasons=_reasons(message.reasons),
        rules=_rules(message),
    )


def _reasons(messages: Iterable[pb.Reason]) -> tuple[ScoreReason, ...]:
    return tuple(ScoreReason(one.code, one.feature, one.contribution) for one in messages)


def _rules(message: pb.ScoreResponse | pb.SelectActionResponse) -> AppliedRules | None:
    if not message.HasField("rules"):
        return None
    rules = message.rules
    return AppliedRules(
        fired=_fired(rules.fired),
        score=rules.score,
        queue=rules.queue,
        unknown=rules.unknown,
        errors=rules.errors,
        conflicts=rules.conflicts,
    )


def _fired(messages: Iterable[pb.FiredRule]) -> tuple[FiredRule, ...]:
    return tuple(FiredRule(one.id, one.reason, one.source) for one in messages)


def _rules_of_rows(message: pb.ScoreBatchResponse, request_id: str) -> tuple[AppliedRules, ...] | None:
    if not message.ruled_rows:
        return None
    rules, rows = _fired(message.rules), message.ruled_rows
    if len(rows) != len(message.scores) or any(at >= len(rules) for row in rows for at in row.fired):
        raise ServerFaultError(
            f"the reply has rules of {len(rows)} rows for {len(message.scores)}, or refers to a rule beyond "
            f"its {len(rules)} rules",
            request_id=request_id,
        )
    return tuple(
        AppliedRules(
            fired=tuple(rules[at] for at in row.fired),
            score=row.score,
            queue=row.queue,
            unknown=row.unknown,
            errors=row.errors,
            conflicts=row.conflicts,
        )
        for row in rows
    )


def _faulted_rows(message: pb.ScoreBatchResponse, request_id: str) -> dict[int, tuple[str, ...]]:
    names, rows = message.served.faulted_functions, message.faulted_rows
    if any(row.row >= len(message.scores) or any(at >= len(names) for at in row.functions) for row in rows):
        raise ServerFaultError(
            f"the reply refers to a row beyond its {len(message.scores)} rows, or to a function beyond its "
            f"{len(names)} functions without a result",
            request_id=request_id,
        )
    return {row.row: tuple(names[at] for at in row.functions) for row in rows}


def read_explanation(reply: bytes) -> RowExplanation:
    """Decode an `ExplainResponse` into a `RowExplanation`.

    Raises:
        ServerFaultError: The reply has no explanation.
    """
    message = pb.ExplainResponse.FromString(reply)
    if not message.HasField("explanation"):
        raise ServerFaultError("the reply has no explanation")
    return RowExplanation(
        bundle=message.bundle,
        explanation=_explanation(message.explanation),
        against=_explanation(message.against) if message.HasField("against") else None,
        difference=_explanation(message.difference) if message.HasField("difference") else None,
        exec_us=message.exec_us,
        faulted_functions=tuple(message.faulted_functions),
    )


def _explanation(message: pb.Explanation) -> MarginExplanation:
    return MarginExplanation(
        action=message.action,
        baseline=message.baseline,
        margin=message.margin,
        score=message.score,
        contributions={one.feature: one.amount for one in message.contributions},
        reasons=_reasons(message.reasons),
    )


def read_batch(reply: bytes, request_id: str, rows: int) -> BatchScore:
    """Decode a `ScoreBatchResponse`.

    Args:
        reply: The encoded message.
        request_id: Id of the request.
        rows: Number of rows of the request.

    Raises:
        ServerFaultError: The reply has another number of rows, or refers to a label, a rule, a row or a
            function that it does not list.
    """
    message = pb.ScoreBatchResponse.FromString(reply)
    if not len(message.scores) == len(message.margins) == len(message.decisions) == rows:
        raise ServerFaultError(
            f"the reply has {len(message.scores)} scores, {len(message.margins)} margins and "
            f"{len(message.decisions)} decisions for {rows} rows",
            request_id=request_id,
        )
    labels = tuple(message.labels)
    if any(index >= len(labels) for index in message.decisions):
        raise ServerFaultError(
            f"the reply refers to a label beyond its {len(labels)} labels", request_id=request_id
        )
    return BatchScore(
        request_id=message.request_id or request_id,
        scores=tuple(message.scores),
        margins=tuple(message.margins),
        decisions=tuple(labels[index] for index in message.decisions),
        served=_served(message.served),
        unlogged=message.unlogged,
        decision_token=message.decision_token,
        rules=_rules_of_rows(message, request_id),
        faulted_rows=_faulted_rows(message, request_id),
    )


def read_action(reply: bytes, request_id: str) -> SelectedAction:
    """Decode a `SelectActionResponse` into a `SelectedAction`."""
    return _action(pb.SelectActionResponse.FromString(reply), request_id)


def _action(message: pb.SelectActionResponse, request_id: str) -> SelectedAction:
    return SelectedAction(
        request_id=request_id,
        decision_id=message.decision_id,
        action=message.action,
        action_index=message.action_index,
        propensity=message.propensity,
        expected_reward=message.expected_reward,
        factors=dict(message.factors),
        pmf=tuple(message.pmf),
        logged=message.logged,
        replayed=message.replayed,
        served=_served(message.served),
        decision_token=message.decision_token,
        reasons=_reasons(message.reasons),
        rules=_rules(message),
    )


def read_decision(reply: bytes, request_id: str) -> tuple[PaymentDecision, Failure | None]:
    """Decode a `DecideResponse` into a `PaymentDecision`, and the failure of its action if it has one.

    Raises:
        ServerFaultError: The reply has no score, or neither an action nor the reason for its absence.
    """
    message = pb.DecideResponse.FromString(reply)
    reason = _NO_ACTION.get(message.no_action)
    if not message.HasField("score") or reason is None or message.HasField("action") != (reason == ""):
        raise ServerFaultError("the reply has no score, or no action and no reason", request_id=request_id)
    decision = PaymentDecision(
        score=_score(message.score, request_id),
        action=_action(message.action, request_id) if message.HasField("action") else None,
        no_action=reason,
        passed_features=tuple(message.passed_features),
    )
    if reason != "failed":
        return decision, None
    code = _CODES.get(message.action_code, grpc.StatusCode.UNKNOWN)
    return decision, Failure(code, message.action_error)


def read_outcome(reply: bytes) -> OutcomeAck:
    """Decode a `ReportOutcomeResponse` into an `OutcomeAck`."""
    message = pb.ReportOutcomeResponse.FromString(reply)
    return OutcomeAck(
        duplicate=message.duplicate,
        decision_known=message.decision_known,
        superseded=message.superseded,
        proven=message.proven,
    )


def read_checkpoints(reply: bytes) -> tuple[CheckpointInfo, ...]:
    """Decode a `DescribeResponse` into checkpoint descriptions."""
    return tuple(_checkpoint(message) for message in pb.DescribeResponse.FromString(reply).checkpoints)


def _checkpoint(message: pb.CheckpointDescription) -> CheckpointInfo:
    return CheckpointInfo(
        checkpoint=message.checkpoint,
        kind=message.kind,
        bundle=message.bundle,
        bundle_name=message.bundle_name,
        lane_table=message.lane_table,
        lanes=tuple(LaneInfo(lane.name, lane.bundle, lane.share) for lane in message.lanes),
        fingerprint=message.schema_fingerprint,
        features=tuple(_feature(feature) for feature in message.features),
        actions=tuple(ActionInfo(action.id, dict(action.factors)) for action in message.actions),
        # `from` is a Python keyword, so the field has no attribute syntax.
        thresholds=tuple(ThresholdInfo(getattr(band, "from"), band.label) for band in message.thresholds),
        policy=message.policy,
        sla_p99_ms=message.sla_p99_ms,
        max_batch_rows=message.max_batch_rows,
        nodes=tuple(NodeInfo(node.name, node.kind, node.mean_us, node.timed) for node in message.nodes),
        entities=tuple(message.entities),
    )


def _feature(message: pb.FeatureDescription) -> FeatureInfo:
    return FeatureInfo(
        name=message.name,
        type=message.type,
        categories=tuple(message.categories),
        missing=message.missing,
        unknown_category=message.unknown_category,
        minimum=message.minimum if message.HasField("minimum") else None,
        maximum=message.maximum if message.HasField("maximum") else None,
        computed=message.computed,
    )


def read_health(reply: bytes) -> Health:
    """Decode a `grpc.health.v1.HealthCheckResponse`, whose only field is `status = 1`.

    It is decoded without generated code, because an installation does not contain the package with the health
    messages.

    Raises:
        ServerFaultError: The reply is not such a message.
    """
    if not reply:
        return Health.UNKNOWN
    if len(reply) == 2 and reply[0] == 0x08 and reply[1] < len(_HEALTH):
        return _HEALTH[reply[1]]
    raise ServerFaultError(f"the health service answered {reply[:16].hex()}, which is no status")
