"""The attempts of one call, which share one deadline and one request id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import grpc

from scorer.client.counters import Counters
from scorer.client.errors import ClientError, InvalidRequestError, error_class
from scorer.client.flow import Failure, Flow, Hedges, Send, Sleep
from scorer.client.retry import RetryBudget, RetryPolicy, wait_before_retry


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the user: the values that all its attempts and errors share.

    Attributes:
        checkpoint: The checkpoint of the request, or "".
        request_id: The id that every attempt carries, or "".
        deadline: Time at which the call ends, in seconds on the client's clock.
    """

    checkpoint: str
    request_id: str
    deadline: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A failed call: the failure of its last attempt, and the number of attempts."""

    failure: Failure
    attempts: int


class CallAttempts:
    """Sends a request and repeats it if that is safe.

    Args:
        policy: When to repeat an attempt.
        max_message_bytes: Largest request in bytes.
        counters: Counters of the client.
        clock: Returns seconds; never goes backwards.
        random: Returns a number that is uniform on [0, 1).
    """

    def __init__(
        self,
        policy: RetryPolicy,
        max_message_bytes: int,
        counters: Counters,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self.budget = RetryBudget(policy)
        self._policy = policy
        self._max_message_bytes = max_message_bytes
        self._counters = counters
        self._clock = clock
        self._random = random

    def send(
        self, method: str, call: Call, payload: bytes, hedging: Hedges | None = None
    ) -> Flow[bytes | Failed]:
        """Return the reply to a request, or the failure of the last attempt.

        Args:
            method: Full path, "/package.Service/Method".
            call: The call that the request belongs to.
            payload: The encoded request.
            hedging: When to send a second copy of an attempt; None: never.

        Raises:
            InvalidRequestError: The request is larger than `max_message_bytes`.
        """
        self._check_size(call, payload)
        attempt = 0
        while True:
            remaining = call.deadline - self._clock()
            if remaining <= 0:
                return Failed(Failure(grpc.StatusCode.DEADLINE_EXCEEDED, "no time is left"), attempt)
            attempt += 1
            outcome = yield Send(method, payload, remaining, hedging=hedging)
            if isinstance(outcome, bytes):
                self.budget.succeeded()
                return outcome
            failure = outcome or Failure(grpc.StatusCode.UNKNOWN, "the transport reported nothing")
            wait = wait_before_retry(
                self._policy,
                self.budget,
                failure,
                attempt=attempt,
                remaining=call.deadline - self._clock(),
                random=self._random,
            )
            if wait is None:
                return Failed(failure, attempt)
            self._counters.retry()
            yield Sleep(wait)

    def _check_size(self, call: Call, payload: bytes) -> None:
        if len(payload) > self._max_message_bytes:
            raise InvalidRequestError(
                f"the request of {len(payload)} bytes is above max_message_bytes={self._max_message_bytes}",
                checkpoint=call.checkpoint,
                request_id=call.request_id,
                remedy="send fewer rows at a time, or raise max_message_bytes on client and server",
            )

    def error(self, failed: Failed, call: Call) -> ClientError:
        """Return the error that a failed call raises, and count it."""
        kind = error_class(failed.failure.code)
        self._counters.error(kind.__name__)
        return kind(
            sentence(failed.failure),
            code=failed.failure.code.name,
            checkpoint=call.checkpoint,
            request_id=call.request_id,
            attempts=failed.attempts,
        )


def sentence(failure: Failure) -> str:
    """Return the details of a failure without a full stop, or the name of its status if there are none."""
    return failure.details.strip().rstrip(".") or failure.code.name.lower().replace("_", " ")
