"""Fallback answers of the client for a server that is unreachable, late or overloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import grpc

from scorer.client.attempts import Call, Failed
from scorer.client.counters import Counters
from scorer.client.errors import ClientError, InvalidRequestError
from scorer.client.results import Served
from scorer.client.schemas import SchemaCache

# Statuses that a fallback answers. An error in the caller's request always raises.
_REASONS = {
    grpc.StatusCode.UNAVAILABLE: "unavailable",
    grpc.StatusCode.DEADLINE_EXCEEDED: "deadline_exceeded",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "overloaded",
    grpc.StatusCode.INTERNAL: "server_fault",
    grpc.StatusCode.UNKNOWN: "server_fault",
    grpc.StatusCode.DATA_LOSS: "server_fault",
    grpc.StatusCode.ABORTED: "server_fault",
    # Cancelled by the server or a proxy; a cancellation by the caller raises before this point.
    grpc.StatusCode.CANCELLED: "server_fault",
}


@dataclass(frozen=True, slots=True)
class ScoreFallback:
    """The answer of `score()`, and of every row of `score_batch()`, without the server.

    Attributes:
        decision: Label of the decision, such as "review".
        score: The score to return.
    """

    decision: str
    score: float


@dataclass(frozen=True, slots=True)
class ActionFallback:
    """The answer of `select_action()` without the server.

    Attributes:
        actions: Ids of actions in order of preference. The first eligible one is chosen. If none is eligible,
            the call raises its error.
    """

    actions: tuple[str, ...]

    def __init__(self, *actions: str) -> None:
        if not actions or not all(actions):
            raise ValueError("name at least one action, and no empty one")
        object.__setattr__(self, "actions", actions)


@dataclass(frozen=True, slots=True)
class FallbackRequest:
    """The argument of a fallback function.

    Attributes:
        checkpoint: The checkpoint of the request.
        request_id: The id of the request.
        features: The features, as the caller passed them.
        eligible: The eligible actions as the caller passed them, iterables as a tuple; None for `score()`.
        reason: "unavailable", "deadline_exceeded", "overloaded" or "server_fault".
        error: The error that the call would raise without a fallback.
    """

    checkpoint: str
    request_id: str
    features: object
    eligible: tuple[str, ...] | bytes | None
    reason: str
    error: ClientError


FallbackAnswer: TypeAlias = ScoreFallback | ActionFallback
Fallback: TypeAlias = FallbackAnswer | Callable[[FallbackRequest], FallbackAnswer]
Fallbacks: TypeAlias = Mapping[str, Fallback]


class OwnAnswers:
    """Answers failed calls with the configured fallbacks.

    Args:
        fallbacks: The fallback of each checkpoint that has one.
        schemas: Catalogues of the checkpoints described so far, for eligibility masks.
        counters: Counters of the client.
    """

    def __init__(self, fallbacks: Fallbacks, schemas: SchemaCache, counters: Counters) -> None:
        self._fallbacks = fallbacks
        self._schemas = schemas
        self._counters = counters

    def check(self, checkpoint: str, kind: type[FallbackAnswer]) -> None:
        """Check the kind of a checkpoint's fallback, at every call and not only when it is needed.

        Raises:
            InvalidRequestError: The fallback is of the other kind.
        """
        fallback = self._fallbacks.get(checkpoint)
        if isinstance(fallback, ScoreFallback | ActionFallback) and not isinstance(fallback, kind):
            raise InvalidRequestError(
                f"its fallback is a {type(fallback).__name__}, and this call needs a {kind.__name__}",
                checkpoint=checkpoint,
                remedy="configure the other kind",
            )

    def score(
        self, call: Call, failed: Failed, error: ClientError, features: object
    ) -> tuple[ScoreFallback, Served] | None:
        """Return the answer to a failed `score()`, or None if the call must raise its error."""
        reason, answer = self._answer(call, failed, error, features, None)
        if answer is None:
            return None
        if not isinstance(answer, ScoreFallback):
            error.add_note(f"the fallback function returned a {type(answer).__name__}, not a ScoreFallback")
            return None
        self._counters.fallback(reason)
        return answer, Served(fallback_source="client", fallback_reason=reason)

    def action(
        self,
        call: Call,
        failed: Failed,
        error: ClientError,
        features: object,
        eligible: tuple[str, ...] | bytes | None,
    ) -> tuple[str, Served] | None:
        """Return the action for a failed `select_action()`, or None if the call must raise its error."""
        reason, answer = self._answer(call, failed, error, features, eligible)
        if answer is None:
            return None
        if not isinstance(answer, ActionFallback):
            error.add_note(f"the fallback function returned a {type(answer).__name__}, not an ActionFallback")
            return None
        action = self._first_eligible(call.checkpoint, answer, eligible)
        if action is None:
            error.add_note("no action of the fallback is known to be eligible")
            return None
        self._counters.fallback(reason)
        return action, Served(fallback_source="client", fallback_reason=reason)

    def _answer(
        self,
        call: Call,
        failed: Failed,
        error: ClientError,
        features: object,
        eligible: tuple[str, ...] | bytes | None,
    ) -> tuple[str, object]:
        reason = _REASONS.get(failed.failure.code, "")
        fallback = self._fallbacks.get(call.checkpoint)
        if not reason or fallback is None:
            return reason, None
        if isinstance(fallback, ScoreFallback | ActionFallback):
            return reason, fallback
        request = FallbackRequest(call.checkpoint, call.request_id, features, eligible, reason, error)
        try:
            return reason, fallback(request)
        except Exception as broken:
            error.add_note(f"the fallback function failed as well: {type(broken).__name__}: {broken}")
            raise error from broken

    def _first_eligible(
        self, checkpoint: str, answer: ActionFallback, eligible: tuple[str, ...] | bytes | None
    ) -> str | None:
        if eligible is None:
            return answer.actions[0]
        if isinstance(eligible, bytes):
            # A mask can only be read with the catalogue, which is known after describe() was called.
            places = self._schemas.action_places(checkpoint)
            allowed = {
                action
                for action, place in places.items()
                if place // 8 < len(eligible) and eligible[place // 8] >> (place % 8) & 1
            }
        else:
            allowed = set(eligible)
        return next((action for action in answer.actions if action in allowed), None)
