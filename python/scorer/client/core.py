"""The client's logic without I/O: it builds requests, decides on retries and decodes replies.

Every public call is a `Flow`, a generator that yields requests to send and times to sleep. The blocking and
the asyncio client run the same flows. `scorer.client.blocking.Client` documents the arguments.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import random as default_random
from typing import cast

import grpc

from scorer.client.attempts import Call, CallAttempts, Failed, sentence
from scorer.client.counters import Counters
from scorer.client.errors import (
    CheckpointNotFoundError,
    DeadlineExceededError,
    InvalidRequestError,
    SchemaChangedError,
)
from scorer.client.events import (
    Event,
    EventResult,
    check_keys,
    events_request,
    read_results,
    row_keys,
)
from scorer.client.fallback import ActionFallback, Fallbacks, OwnAnswers, ScoreFallback
from scorer.client.flow import Failure, Flow, Hedges, Send, Sleep
from scorer.client.replies import (
    read_action,
    read_batch,
    read_checkpoints,
    read_decision,
    read_explanation,
    read_health,
    read_outcome,
    read_score,
)
from scorer.client.requests import (
    Eligible,
    Features,
    FeatureValue,
    ReportedBy,
    Rows,
    check_timeout,
    dense_row,
    eligible_actions,
    health_request,
    named_features,
    normalise_eligible,
    number_of_reasons,
    outcome_source,
    packed_rows,
    request_identity,
    shared_features,
    with_packed_values,
)
from scorer.client.results import (
    BatchScore,
    CheckpointInfo,
    Health,
    OutcomeAck,
    PaymentDecision,
    RowExplanation,
    Score,
    SelectedAction,
    Served,
)
from scorer.client.retry import RetryPolicy
from scorer.client.schemas import SchemaCache, describe_change
from scorer.client.tokens import DecisionTokens
from scorer.v1 import scoring_pb2 as pb

DEFAULT_TIMEOUT_S = 0.25
SERVICE = "/scorer.v1.ScoringService/"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
_READY_POLL_S = 0.02
_READY_CALL_S = 1.0


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The arguments of a client."""

    timeout: float
    retry: RetryPolicy
    fallback: Fallbacks
    max_message_bytes: int
    hedging: Hedges | None = None


class Core:
    """The state that all calls of one client share, and the flows of its methods."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = default_random,
    ) -> None:
        self.counters = Counters()
        self.schemas = SchemaCache()
        self._tokens = DecisionTokens()
        self._timeout = settings.timeout
        self._hedging = settings.hedging
        self._clock = clock
        self._own = OwnAnswers(settings.fallback, self.schemas, self.counters)
        self._attempts = CallAttempts(
            settings.retry, settings.max_message_bytes, self.counters, clock, random
        )

    # -- the calls -----------------------------------------------------------------

    def score(
        self,
        checkpoint: str,
        features: Features,
        *,
        request_id: str | None,
        entity: str,
        timeout: float | None,
        reasons: int = 0,
        keys: Mapping[str, str] | None = None,
    ) -> Flow[Score]:
        """Score one event and return the decision."""
        call = self._begin(checkpoint, request_identity(request_id), timeout)
        self._own.check(checkpoint, ScoreFallback)
        request = pb.ScoreRequest(
            checkpoint=checkpoint,
            request_id=call.request_id,
            entity=entity,
            include_token=True,
            reasons=number_of_reasons(reasons),
            keys=check_keys(keys),
        )
        reply = yield from self._ask("Score", call, request, features, self._hedging)
        if isinstance(reply, bytes):
            score = read_score(reply, call.request_id)
            self._tokens.keep(checkpoint, score.decision_id, score.decision_token)
            return score
        error = self._attempts.error(reply, call)
        own = self._own.score(call, reply, error, features)
        if own is None:
            raise error
        answer, served = own
        return Score(call.request_id, "", answer.score, math.nan, answer.decision, served)

    def score_batch(
        self,
        checkpoint: str,
        rows: Rows,
        *,
        request_id: str | None,
        entity: str,
        timeout: float | None,
        keys: Mapping[str, Sequence[str | None]] | None = None,
    ) -> Flow[BatchScore]:
        """Score many rows on one bundle."""
        call = self._begin(checkpoint, request_identity(request_id), timeout)
        self._own.check(checkpoint, ScoreFallback)
        packed, count, width = packed_rows(rows)
        request = pb.ScoreBatchRequest(
            checkpoint=checkpoint,
            request_id=call.request_id,
            entity=entity,
            rows=count,
            include_token=True,
            keys=row_keys(keys, count),
        )

        def payload(fingerprint: int) -> bytes:
            request.schema_fingerprint = fingerprint
            return with_packed_values(request, packed)

        reply = yield from self._ask_dense("ScoreBatch", call, width, payload)
        if isinstance(reply, bytes):
            batch = read_batch(reply, call.request_id, count)
            self._tokens.keep(checkpoint, batch.request_id, batch.decision_token)
            return batch
        error = self._attempts.error(reply, call)
        own = self._own.score(call, reply, error, rows)
        if own is None:
            raise error
        answer, served = own
        return BatchScore(
            request_id=call.request_id,
            scores=(answer.score,) * count,
            margins=(math.nan,) * count,
            decisions=(answer.decision,) * count,
            served=served,
            unlogged=count,
        )

    def select_action(
        self,
        checkpoint: str,
        features: Features,
        *,
        eligible: Eligible,
        include_pmf: bool,
        request_id: str | None,
        entity: str,
        timeout: float | None,
        reasons: int = 0,
        keys: Mapping[str, str] | None = None,
    ) -> Flow[SelectedAction]:
        """Draw one action among the eligible ones."""
        call = self._begin(checkpoint, request_identity(request_id), timeout)
        self._own.check(checkpoint, ActionFallback)
        allowed = normalise_eligible(eligible)
        request = pb.SelectActionRequest(
            checkpoint=checkpoint,
            request_id=call.request_id,
            entity=entity,
            include_pmf=include_pmf,
            reasons=number_of_reasons(reasons),
            keys=check_keys(keys),
        )
        if allowed is not None:
            request.eligible.CopyFrom(eligible_actions(allowed))
        reply = yield from self._ask("SelectAction", call, request, features)
        if isinstance(reply, bytes):
            selected = read_action(reply, call.request_id)
            self._tokens.keep(checkpoint, selected.decision_id, selected.decision_token)
            return selected
        error = self._attempts.error(reply, call)
        own = self._own.action(call, reply, error, features, allowed)
        if own is None:
            raise error
        return self._own_action(call, *own)

    def decide(
        self,
        score_checkpoint: str,
        action_checkpoint: str,
        features: Mapping[str, FeatureValue],
        *,
        score_feature: str,
        decision_feature: str,
        action_if_declined: bool,
        eligible: Eligible,
        include_pmf: bool,
        request_id: str | None,
        entity: str,
        timeout: float | None,
        score_reasons: int,
        action_reasons: int,
        keys: Mapping[str, str] | None = None,
    ) -> Flow[PaymentDecision]:
        """Score a payment and choose its action in one request."""
        call = self._begin(score_checkpoint, request_identity(request_id), timeout)
        of_action = Call(action_checkpoint, call.request_id, call.deadline)
        self._own.check(score_checkpoint, ScoreFallback)
        self._own.check(action_checkpoint, ActionFallback)
        allowed = normalise_eligible(eligible)
        try:
            request = pb.DecideRequest(
                score=pb.ScoreStep(
                    checkpoint=score_checkpoint, reasons=number_of_reasons(score_reasons), include_token=True
                ),
                action=pb.ActionStep(
                    checkpoint=action_checkpoint,
                    reasons=number_of_reasons(action_reasons),
                    include_pmf=include_pmf,
                ),
                request_id=call.request_id,
                entity=entity,
                features=shared_features(features),
                score_feature=score_feature,
                decision_feature=decision_feature,
                action_if_declined=action_if_declined,
                keys=check_keys(keys),
            )
        except TypeError as wrong:
            raise InvalidRequestError(
                f"decision: {wrong}",
                checkpoint=score_checkpoint,
                remedy="checkpoints, entity, score_feature and decision_feature are strings",
            ) from None
        if allowed is not None:
            request.action.eligible.CopyFrom(eligible_actions(allowed))
        reply = yield from self._attempts.send(SERVICE + "Decide", call, request.SerializeToString())
        if isinstance(reply, bytes):
            decision, failure = read_decision(reply, call.request_id)
            score, action = decision.score, decision.action
            self._tokens.keep(score_checkpoint, score.decision_id, score.decision_token)
            if action is not None:
                self._tokens.keep(action_checkpoint, action.decision_id, action.decision_token)
            if failure is None:
                return decision
            failed = Failed(failure, 1)
            error = self._attempts.error(failed, of_action)
            own = self._own.action(of_action, failed, error, features, allowed)
            if own is None:
                return replace(decision, action_error=error)
            return replace(decision, action=self._own_action(of_action, *own), no_action="")
        error = self._attempts.error(reply, call)
        own_score = self._own.score(call, reply, error, features)
        own = None if own_score is None else self._own.action(of_action, reply, error, features, allowed)
        if own_score is None or own is None:
            raise error
        answer, served = own_score
        score = Score(call.request_id, "", answer.score, math.nan, answer.decision, served)
        return PaymentDecision(score=score, action=self._own_action(of_action, *own))

    def _own_action(self, call: Call, action: str, served: Served) -> SelectedAction:
        return SelectedAction(
            request_id=call.request_id,
            decision_id="",
            action=action,
            action_index=self.schemas.action_places(call.checkpoint).get(action, -1),
            propensity=1.0,
            expected_reward=math.nan,
            factors=self.schemas.action_factors(call.checkpoint, action),
            pmf=(),
            logged=False,
            replayed=False,
            served=served,
        )

    def explain(
        self,
        checkpoint: str,
        features: Features,
        *,
        action: str,
        against: str,
        bundle: str,
        reasons: int,
        timeout: float | None,
    ) -> Flow[RowExplanation]:
        """Explain the score of one row, or of one action."""
        call = self._begin(checkpoint, "", timeout)
        try:
            request = pb.ExplainRequest(
                checkpoint=checkpoint,
                bundle=bundle,
                action=action,
                against=against,
                reasons=number_of_reasons(reasons),
            )
        except TypeError as error:
            raise InvalidRequestError(
                f"explanation: {error}",
                checkpoint=checkpoint,
                remedy="action, against and bundle are strings",
            ) from None
        reply = yield from self._ask("Explain", call, request, features)
        if isinstance(reply, bytes):
            return read_explanation(reply)
        raise self._attempts.error(reply, call)

    def report_outcome(
        self,
        checkpoint: str,
        decision_id: str,
        kind: str,
        value: float,
        *,
        revision: int,
        occurred_at_ms: int,
        decision_token: bytes | None,
        source: ReportedBy | None,
        source_id: str,
        timeout: float | None,
    ) -> Flow[OutcomeAck]:
        """Report the outcome of a decision."""
        if not decision_id:
            raise InvalidRequestError(
                "decision_id is empty: the client's own fallback answered, and the server's log "
                "has nothing to join this outcome to",
                checkpoint=checkpoint,
                remedy='skip outcomes of answers whose served.fallback_source is "client"',
            )
        call = self._begin(checkpoint, decision_id, timeout)
        if decision_token is None:
            decision_token = self._tokens.of(checkpoint, decision_id)
        try:
            request = pb.ReportOutcomeRequest(
                checkpoint=checkpoint,
                decision_id=decision_id,
                kind=kind,
                value=value,
                revision=revision,
                occurred_at_ms=occurred_at_ms,
                decision_token=decision_token,
                source=outcome_source(source, source_id),
            )
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(
                f"outcome of {decision_id}: {error}",
                checkpoint=checkpoint,
                remedy="kind is a string, value a number, revision an integer from 0, decision_token bytes",
            ) from None
        reply = yield from self._attempts.send(SERVICE + "ReportOutcome", call, request.SerializeToString())
        if isinstance(reply, bytes):
            return read_outcome(reply)
        raise self._attempts.error(reply, call)

    def record_events(
        self, events: Sequence[Event], *, timeout: float | None
    ) -> Flow[tuple[EventResult, ...]]:
        """Record events from which the server computes features."""
        request = events_request(events)
        call = Call("", "", self._deadline(timeout))
        self.counters.call()
        reply = yield from self._attempts.send(SERVICE + "RecordEvents", call, request.SerializeToString())
        if isinstance(reply, bytes):
            return read_results(reply, len(events))
        raise self._attempts.error(reply, call)

    def describe(self, checkpoint: str, *, timeout: float | None) -> Flow[CheckpointInfo]:
        """Return what one checkpoint serves now."""
        call = self._begin(checkpoint, "", timeout)
        described = yield from self._describe(call)
        if isinstance(described, CheckpointInfo):
            return described
        raise self._attempts.error(described, call)

    def checkpoints(self, *, timeout: float | None) -> Flow[tuple[CheckpointInfo, ...]]:
        """Return what every checkpoint serves now."""
        call = Call("", "", self._deadline(timeout))
        self.counters.call()
        reply = yield from self._attempts.send(SERVICE + "Describe", call, b"")
        if isinstance(reply, bytes):
            return read_checkpoints(reply)
        raise self._attempts.error(reply, call)

    def health(self, service: str, *, timeout: float | None) -> Flow[Health]:
        """Call the standard gRPC health service; "" is the whole server."""
        call = Call(service, "", self._deadline(timeout))
        payload = health_request(service)
        self.counters.call()
        reply = yield from self._attempts.send(HEALTH_CHECK, call, payload)
        if isinstance(reply, bytes):
            return read_health(reply)
        if reply.failure.code is grpc.StatusCode.NOT_FOUND:
            return Health.SERVICE_UNKNOWN
        raise self._attempts.error(reply, call)

    def wait_ready(self, service: str, *, timeout: float) -> Flow[None]:
        """Return once the server reports SERVING."""
        deadline = self._deadline(timeout)
        payload = health_request(service)
        last = "no connection"
        while (remaining := deadline - self._clock()) > 0:
            within = min(remaining, _READY_CALL_S)
            outcome = yield Send(HEALTH_CHECK, payload, within, wait_for_ready=True)
            if isinstance(outcome, bytes):
                health = read_health(outcome)
                if health is Health.SERVING:
                    return
                last = f"the server says {health}"
            elif isinstance(outcome, Failure):
                if outcome.code in {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED}:
                    raise self._attempts.error(Failed(outcome, 1), Call(service, "", deadline))
                # A call that the end of the wait cuts short says nothing about the server.
                if outcome.code is not grpc.StatusCode.DEADLINE_EXCEEDED or within == _READY_CALL_S:
                    last = sentence(outcome)
            yield Sleep(_READY_POLL_S)
        raise DeadlineExceededError(
            f"not ready within {timeout:g} s: {last}",
            checkpoint=service,
            remedy="see the server's log and status; raise timeout= if it is still loading",
        )

    # -- shared steps --------------------------------------------------------------

    def _begin(self, checkpoint: str, request_id: str, timeout: float | None) -> Call:
        if not isinstance(checkpoint, str) or not checkpoint:
            raise InvalidRequestError(
                f"checkpoint {checkpoint!r} is no name", remedy="name a checkpoint; checkpoints() lists them"
            )
        call = Call(checkpoint, request_id, self._deadline(timeout))
        self.counters.call()
        return call

    def _deadline(self, timeout: float | None) -> float:
        return self._clock() + (self._timeout if timeout is None else check_timeout(timeout))

    def _ask(
        self,
        method: str,
        call: Call,
        request: pb.ScoreRequest | pb.SelectActionRequest | pb.ExplainRequest,
        features: Features,
        hedging: Hedges | None = None,
    ) -> Flow[bytes | Failed]:
        if hasattr(features, "keys"):
            named = named_features(cast("Mapping[str, FeatureValue]", features))
            request.named.CopyFrom(named)
            encoded = request.SerializeToString()
            return (yield from self._attempts.send(SERVICE + method, call, encoded, hedging))
        values = dense_row(features)
        request.dense.values.extend(values)

        def payload(fingerprint: int) -> bytes:
            request.dense.schema_fingerprint = fingerprint
            return request.SerializeToString()

        return (yield from self._ask_dense(method, call, len(values), payload, hedging))

    def _ask_dense(
        self,
        method: str,
        call: Call,
        width: int,
        payload: Callable[[int], bytes],
        hedging: Hedges | None = None,
    ) -> Flow[bytes | Failed]:
        """Send values whose order is that of the schema in use for the checkpoint."""
        schema = self.schemas.get(call.checkpoint)
        if schema is None:
            described = yield from self._describe(call)
            if isinstance(described, Failed):
                return described
            schema = self.schemas.first(described)
        if schema.names is not None and width != len(schema.names):
            raise InvalidRequestError(
                f"{width} dense values, but the schema has {len(schema.names)} features",
                checkpoint=call.checkpoint,
                request_id=call.request_id,
                remedy="order them as in describe().features",
            )
        reply = yield from self._attempts.send(SERVICE + method, call, payload(schema.fingerprint), hedging)
        if isinstance(reply, Failed) and reply.failure.code is grpc.StatusCode.FAILED_PRECONDITION:
            # Fetch the schema that is served now; the status alone does not tell which precondition failed.
            described = yield from self._describe(call)
            if isinstance(described, CheckpointInfo) and described.fingerprint != schema.fingerprint:
                self.counters.error(SchemaChangedError.__name__)
                raise SchemaChangedError(
                    describe_change(schema, described),
                    expected=schema.fingerprint,
                    actual=described.fingerprint,
                    code=reply.failure.code.name,
                    checkpoint=call.checkpoint,
                    request_id=call.request_id,
                    attempts=reply.attempts,
                )
        return reply

    def _describe(self, call: Call) -> Flow[CheckpointInfo | Failed]:
        request = pb.DescribeRequest(checkpoint=call.checkpoint)
        reply = yield from self._attempts.send(SERVICE + "Describe", call, request.SerializeToString())
        if isinstance(reply, Failed):
            return reply
        for described in read_checkpoints(reply):
            if described.checkpoint == call.checkpoint:
                self.schemas.seen(described)
                return described
        raise CheckpointNotFoundError("the server does not describe it", checkpoint=call.checkpoint)
