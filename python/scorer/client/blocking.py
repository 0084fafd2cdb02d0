"""`scorer.Client`, which runs the flows of `core` with blocking calls."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import grpc

from scorer.client.base import ClientBase
from scorer.client.channel import DEFAULT_MAX_MESSAGE_BYTES
from scorer.client.core import DEFAULT_TIMEOUT_S
from scorer.client.errors import ClientUseError
from scorer.client.events import Event, EventResult
from scorer.client.fallback import Fallback
from scorer.client.flow import Failure, Flow, Hedges, Outcome, Send, Sleep
from scorer.client.hedging import Hedge
from scorer.client.requests import Eligible, Features, FeatureValue, ReportedBy, Rows
from scorer.client.results import (
    BatchScore,
    CheckpointInfo,
    Health,
    OutcomeAck,
    PaymentDecision,
    RowExplanation,
    Score,
    SelectedAction,
)
from scorer.client.retry import RetryPolicy, read_pushback

T = TypeVar("T")


class Client(ClientBase):
    """A connection to a scorer server, or one to each replica of a list.

    A client may be shared between threads. All calls use one connection per replica, so create one client per
    process and keep it. After a fork, create a new client: calls on the old one raise `ClientUseError`.

        with scorer.Client("127.0.0.1:7000") as client:
            answer = client.score("fraud.checkout", {"amount": 12.5, "country": "NL"})
            print(answer.score, answer.decision)

    Several replicas are called in turn. Of a name with several addresses, the client calls those that it is
    connected to. Of a list of addresses, it also leaves out a replica whose health service does not report
    SERVING, and for 5 to 30 s one that answers less than 15 % of its calls, as long as at least half of the
    replicas are left.

    Args:
        target: "host:port", "unix:///absolute/path", or a list of IP addresses with ports.
        timeout: Time limit of a call in seconds, for all of its attempts together. The argument `timeout` of
            a method overrides it.
        retry: When and how often to repeat a call that ended with UNAVAILABLE.
        fallback: By checkpoint, the answer that is returned instead of an error if the server is unreachable,
            late, overloaded or faulty: a `ScoreFallback`, an `ActionFallback` or a function. Such an answer
            has `served.fallback_source == "client"`.
        credentials: Credentials for TLS; without them the connection is not encrypted.
        metadata: Metadata of every call, for instance an authorization header.
        max_message_bytes: Largest request in bytes; the server's limit should be the same.
        server_name: Name in the certificates of the servers; default: the host of the target, or of the first
            address of a list.
        hedge: Seconds after which a score without an answer is sent a second time, usually to another
            replica; "p95": the 95th percentile of the time that recent scores took. At most about a tenth of
            the scores are sent twice. Selections and outcomes never are.

    Raises:
        InvalidTargetError: The target has none of these forms.
        InvalidRequestError: The timeout, a fallback, `hedge` or `max_message_bytes` is not valid.
    """

    def __init__(
        self,
        target: str | Sequence[str],
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        retry: RetryPolicy | None = None,
        fallback: Mapping[str, Fallback] | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Sequence[tuple[str, str]] = (),
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        server_name: str | None = None,
        hedge: Hedge = None,
    ) -> None:
        super().__init__(
            target,
            timeout=timeout,
            retry=retry,
            fallback=fallback,
            credentials=credentials,
            metadata=metadata,
            max_message_bytes=max_message_bytes,
            server_name=server_name,
            hedge=hedge,
        )
        if credentials is None:
            self._channel = grpc.insecure_channel(self._address, self._options)
        else:
            self._channel = grpc.secure_channel(self._address, credentials, self._options)
        self._methods: dict[str, Any] = {}

    def score(
        self,
        checkpoint: str,
        features: Features,
        *,
        request_id: str | None = None,
        entity: str = "",
        timeout: float | None = None,
        reasons: int = 0,
        keys: Mapping[str, str] | None = None,
    ) -> Score:
        """Score one event.

        Args:
            checkpoint: A checkpoint of kind "score".
            features: Values by name (None: missing), or a sequence or array of numbers in the order of the
                schema (None or NaN: missing; a category as its code).
            request_id: Your idempotency key, 1 to 64 printable ASCII characters; it becomes the decision's
                id. Without one, the client draws a random id and sends it with every attempt.
            entity: Key that assigns requests to lanes, such as a shopper token.
            timeout: Time limit in seconds for all attempts together; default: the client's.
            reasons: Number of features that contribute most to return, at most 32.
            keys: Keys of the entities whose features the server computes, by name of the entity; see
                `describe(checkpoint).entities`.

        Returns:
            The score, its decision label, and which bundle served it.

        Raises:
            InvalidRequestError: The request violates a rule of the schema. The same request fails again.
            CheckpointNotFoundError: The server has no such checkpoint.
            SchemaChangedError: The dense values follow a schema that the checkpoint no longer has.
            ClientError: The call failed and no fallback applies. The subclass states the reason.
        """
        return self._run(
            self._core.score(
                checkpoint,
                features,
                request_id=request_id,
                entity=entity,
                timeout=timeout,
                reasons=reasons,
                keys=keys,
            )
        )

    def score_batch(
        self,
        checkpoint: str,
        rows: Rows,
        *,
        request_id: str | None = None,
        entity: str = "",
        timeout: float | None = None,
        keys: Mapping[str, Sequence[str | None]] | None = None,
    ) -> BatchScore:
        """Score many rows, all on the same bundle.

        Args:
            checkpoint: A checkpoint of kind "score".
            rows: Array ``[rows, features]`` or sequence of dense rows, in the order of the schema. At most
                `describe(checkpoint).max_batch_rows` rows are allowed.
            request_id: As for `score()`; row i becomes the decision "<request_id>/<i>".
            entity: As for `score()`.
            timeout: As for `score()`.
            keys: Keys as for `score()`, one per row; None if a row has none.

        Returns:
            Scores, margins and decision labels, one for each row.

        Raises:
            ClientError: As for `score()`.
        """
        return self._run(
            self._core.score_batch(
                checkpoint, rows, request_id=request_id, entity=entity, timeout=timeout, keys=keys
            )
        )

    def select_action(
        self,
        checkpoint: str,
        features: Features,
        *,
        eligible: Eligible = None,
        include_pmf: bool = False,
        request_id: str | None = None,
        entity: str = "",
        timeout: float | None = None,
        reasons: int = 0,
        keys: Mapping[str, str] | None = None,
    ) -> SelectedAction:
        """Draw a payment action from the policy's probabilities.

        Args:
            checkpoint: A checkpoint of kind "action".
            features: As for `score()`.
            eligible: Ids of the actions to choose from, or a bit mask over the catalogue as bytes (action 0
                is the least significant bit of the first byte). None allows all actions.
            include_pmf: Whether to return the probability of every action too.
            request_id: As for `score()`. A request with the same id and content gets the same action and
                propensity.
            entity: As for `score()`.
            timeout: As for `score()`.
            reasons: As for `score()`; the features of the action are included.
            keys: As for `score()`.

        Returns:
            The action, its index in the catalogue, and the exact probability with which it was drawn.

        Raises:
            IdConflictError: The request id was used before with other content.
            ClientError: As for `score()`.
        """
        return self._run(
            self._core.select_action(
                checkpoint,
                features,
                eligible=eligible,
                include_pmf=include_pmf,
                request_id=request_id,
                entity=entity,
                timeout=timeout,
                reasons=reasons,
                keys=keys,
            )
        )

    def decide(
        self,
        score_checkpoint: str,
        action_checkpoint: str,
        features: Mapping[str, FeatureValue],
        *,
        score_feature: str = "",
        decision_feature: str = "",
        action_if_declined: bool = False,
        eligible: Eligible = None,
        include_pmf: bool = False,
        request_id: str | None = None,
        entity: str = "",
        timeout: float | None = None,
        score_reasons: int = 0,
        action_reasons: int = 0,
        keys: Mapping[str, str] | None = None,
    ) -> PaymentDecision:
        """Score a payment, and choose an action for it, in one request.

        Both decisions are routed by the same lane table, share one deadline and have the same id. Everything
        that is wrong with the request is reported before anything is decided.

        Args:
            score_checkpoint: A checkpoint of kind "score".
            action_checkpoint: A checkpoint of kind "action".
            features: Values by name (None: missing) of both bundles, each stated once.
            score_feature: Number feature of the action bundle that receives the score. A bundle that does not
                have it receives nothing. "": the score is not passed on.
            decision_feature: Category feature of the action bundle that receives the decision of the score.
            action_if_declined: Whether to choose an action even if the decision of the score is the strictest
                of its bundle.
            eligible: As for `select_action()`.
            include_pmf: As for `select_action()`.
            request_id: As for `score()`; it becomes the id of both decisions.
            entity: As for `score()`.
            timeout: As for `score()`.
            score_reasons: Number of reasons of the score, as for `score()`.
            action_reasons: Number of reasons of the action, as for `select_action()`.
            keys: As for `score()`, for both steps.

        Returns:
            The score, and the action or the reason for its absence. If the server is unreachable, late or
            faulty, and both checkpoints have a fallback of this client, those answer.

        Raises:
            IdConflictError: The request id was used before with other content.
            ClientError: As for `score()`.
        """
        return self._run(
            self._core.decide(
                score_checkpoint,
                action_checkpoint,
                features,
                score_feature=score_feature,
                decision_feature=decision_feature,
                action_if_declined=action_if_declined,
                eligible=eligible,
                include_pmf=include_pmf,
                request_id=request_id,
                entity=entity,
                timeout=timeout,
                score_reasons=score_reasons,
                action_reasons=action_reasons,
                keys=keys,
            )
        )

    def explain(
        self,
        checkpoint: str,
        features: Features,
        *,
        action: str = "",
        against: str = "",
        bundle: str = "",
        reasons: int = 0,
        timeout: float | None = None,
    ) -> RowExplanation:
        """Explain a score, or the expected reward of an action, by the exact contribution of each feature.

        The server decides and records nothing. It computes explanations beside its answers and rejects them
        when it is under load.

        Args:
            checkpoint: A checkpoint of either kind.
            features: As for `score()`. Of a bundle with another schema than the live one, by name.
            action: At a checkpoint of kind "action": id of the action to explain.
            against: Id of another action to compare with.
            bundle: Digest "sha256:<hex>" of a bundle that answers, answered before or observes at the
                checkpoint, such as `served.bundle` of an answer. Default: the one that `describe()` returns.
            reasons: Number of features that contribute most to return with their codes, at most 32.
            timeout: As for `score()`.

        Returns:
            Baseline, margin and contributions. With `against`, those of both actions and the difference.

        Raises:
            OverloadedError: As many explanations wait as may, or the server is under pressure.
            PreconditionError: The bundle has no covers, so it cannot be explained.
            ClientError: As for `score()`, without a fallback.
        """
        return self._run(
            self._core.explain(
                checkpoint,
                features,
                action=action,
                against=against,
                bundle=bundle,
                reasons=reasons,
                timeout=timeout,
            )
        )

    def report_outcome(
        self,
        checkpoint: str,
        decision_id: str,
        kind: str,
        value: float,
        *,
        revision: int = 0,
        occurred_at_ms: int = 0,
        decision_token: bytes | None = None,
        source: ReportedBy | None = None,
        source_id: str = "",
        timeout: float | None = None,
    ) -> OutcomeAck:
        """Report the outcome of a decision. A repeated report has no further effect.

        Args:
            checkpoint: Checkpoint of the decision.
            decision_id: `decision_id` of the reply.
            kind: Name of the outcome, such as "authorised", "fraud" or "chargeback".
            value: Any finite number, usually 0 or 1.
            revision: An outcome with a higher revision replaces one with a lower revision.
            occurred_at_ms: Milliseconds since the Unix epoch; 0 if not known.
            decision_token: `decision_token` of the reply, which proves the outcome to any replica. Default:
                the token that this client received, if it is among the 65,536 newest.
            source: Who or what reports the outcome; None: not stated. Where callers need grants, "reviewer"
                requires the role `report_reviews`.
            source_id: Short id of the source, such as the name of a feed: at most 64 printable ASCII
                characters.
            timeout: As for `score()`.

        Returns:
            Whether the outcome was recorded before, is superseded, and is proven.

        Raises:
            IdConflictError: The same revision was reported with another value.
            ClientError: As for `score()`, without a fallback.
        """
        return self._run(
            self._core.report_outcome(
                checkpoint,
                decision_id,
                kind,
                value,
                revision=revision,
                occurred_at_ms=occurred_at_ms,
                decision_token=decision_token,
                source=source,
                source_id=source_id,
                timeout=timeout,
            )
        )

    def record_events(
        self, events: Sequence[Event], *, timeout: float | None = None
    ) -> tuple[EventResult, ...]:
        """Record events from which the server computes features.

        The call can be repeated with the same events: events with a known id change nothing. A call that
        raises may have recorded some of its events.

        Args:
            events: 1 to 1,000 events. Each is recorded or refused on its own.
            timeout: As for `score()`.

        Returns:
            One result per event, in the same order.

        Raises:
            OverloadedError: The journal cannot keep up; repeat the call later.
            PreconditionError: The server has no feature sets.
            ClientError: As for `score()`.
        """
        return self._run(self._core.record_events(events, timeout=timeout))

    def describe(self, checkpoint: str, *, timeout: float | None = None) -> CheckpointInfo:
        """Return what a checkpoint serves now: schema, actions, thresholds, SLA.

        Args:
            checkpoint: The checkpoint's name.
            timeout: As for `score()`.

        Raises:
            CheckpointNotFoundError: The server has no such checkpoint.
            ClientError: There was no answer within `timeout`.
        """
        return self._run(self._core.describe(checkpoint, timeout=timeout))

    def checkpoints(self, *, timeout: float | None = None) -> tuple[CheckpointInfo, ...]:
        """Return what every checkpoint serves now.

        Args:
            timeout: As for `score()`.

        Raises:
            ClientError: There was no answer within `timeout`.
        """
        return self._run(self._core.checkpoints(timeout=timeout))

    def health(self, service: str = "", *, timeout: float | None = None) -> Health:
        """Call the standard gRPC health service.

        Args:
            service: Name of a service; "" is the whole server.
            timeout: As for `score()`.

        Raises:
            ClientError: There was no answer within `timeout`.
        """
        return self._run(self._core.health(service, timeout=timeout))

    def wait_ready(self, service: str = "", *, timeout: float = 10.0) -> None:
        """Wait until the server reports SERVING.

        Args:
            service: Name of a service; "" is the whole server.
            timeout: Time limit in seconds.

        Raises:
            DeadlineExceededError: The server did not report SERVING within `timeout`.
            ClientError: The server has no health service, or requires credentials.
        """
        self._run(self._core.wait_ready(service, timeout=timeout))

    def close(self) -> None:
        """Close the connection. Calls in flight end with an error."""
        self._closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        """Return the client. The first call opens the connection."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        self.close()

    def _run(self, flow: Flow[T]) -> T:
        self._check_usable()
        outcome: Outcome = None
        try:
            while True:
                step = flow.send(outcome)
                if isinstance(step, Sleep):
                    time.sleep(step.seconds)
                    outcome = None
                else:
                    outcome = self._send(step)
        except StopIteration as done:
            return cast(T, done.value)

    def _send(self, step: Send) -> bytes | Failure:
        method = self._methods.get(step.method)
        if method is None:
            # No serialisers: the flows encode requests and decode replies.
            method = self._methods.setdefault(step.method, self._channel.unary_unary(step.method, None, None))
        try:
            if step.hedging is not None:
                return self._send_hedged(method, step, step.hedging)
            reply = method(
                step.payload,
                timeout=step.timeout,
                metadata=self._metadata,
                wait_for_ready=step.wait_for_ready,
            )
        except grpc.RpcError as error:
            return _failure(error)
        except ValueError as error:
            if self._closed:
                raise ClientUseError(
                    "the client was closed during the call", remedy="make a new one"
                ) from error
            raise
        return cast(bytes, reply)

    def _send_hedged(self, method: Any, step: Send, hedging: Hedges) -> bytes | Failure:
        """Send the request, and a second copy if the first is not answered within the delay."""
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        copies: list[Any] = []
        began = time.monotonic()

        def send(seconds: float) -> None:
            copies.append(method.future(step.payload, timeout=seconds, metadata=self._metadata))
            copies[-1].add_done_callback(ended.put)

        send(step.timeout)
        failure = Failure(grpc.StatusCode.DEADLINE_EXCEEDED, "no time is left")
        was_slower = False
        try:
            try:
                copy = ended.get(timeout=min(hedging.delay, step.timeout))
            except queue.Empty:
                was_slower = True
                remaining = step.timeout - (time.monotonic() - began)
                if remaining > 0 and hedging.may_send():
                    self._core.counters.hedge()
                    send(remaining)
                copy = ended.get()  # each copy ends by its timeout
            for number in range(1, len(copies) + 1):
                try:
                    reply = copy.result()
                except grpc.RpcError as error:
                    failure = _failure(error)
                except grpc.FutureCancelledError:
                    failure = Failure(grpc.StatusCode.CANCELLED, "the client was closed during the call")
                else:
                    hedging.answered(was_slower=was_slower)
                    return cast(bytes, reply)
                if number < len(copies):
                    copy = ended.get()
        finally:
            for copy in copies:
                copy.cancel()
        return failure


def _failure(error: Any) -> Failure:
    return Failure(error.code(), error.details() or "", read_pushback(error.trailing_metadata()))
