"""The rules for repeating a failed attempt, after gRFC A6 (gRPC client retry design)."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import grpc

from scorer.client.flow import Failure

PUSHBACK_KEY = "grpc-retry-pushback-ms"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how fast a call is repeated after an attempt that ended with UNAVAILABLE.

    Other statuses are not repeated. All attempts share the call's deadline and request id. The wait before
    repetition n (from 0) is drawn uniformly from [0, min(cap_s, base_s * 2**n)].

    Attributes:
        attempts: Most times that one request is sent, 1 to 5; 1 turns retries off.
        base_s: Upper limit of the first wait in seconds.
        cap_s: Upper limit of every wait in seconds.
        max_tokens: Size of the token bucket that all calls of a client share. Each failure takes a token, and
            no call is repeated while half of the tokens or fewer are left. This bounds the additional load on
            a server that is failing.
        token_ratio: Number of tokens that a successful attempt gives back.

    Raises:
        ValueError: A value is out of range.
    """

    attempts: int = 3
    base_s: float = 0.01
    cap_s: float = 0.1
    max_tokens: float = 10.0
    token_ratio: float = 0.1

    def __post_init__(self) -> None:
        """Check the settings."""
        if not 1 <= self.attempts <= 5:
            raise ValueError(f"attempts must be 1 to 5, not {self.attempts}")
        for name in ("base_s", "cap_s", "max_tokens", "token_ratio"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a finite number above 0, not {value}")


class RetryBudget:
    """The token bucket of gRFC A6: a retry is allowed while more than half of the tokens are left."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._max = policy.max_tokens
        self._ratio = policy.token_ratio
        self._tokens = policy.max_tokens
        self._lock = threading.Lock()

    def succeeded(self) -> None:
        """Give back a fraction of a token."""
        # The bucket is usually full, and reading a float needs no lock.
        if self._tokens < self._max:
            with self._lock:
                self._tokens = min(self._max, self._tokens + self._ratio)

    def failed(self) -> bool:
        """Take a token; return whether a retry is still allowed."""
        with self._lock:
            self._tokens = max(0.0, self._tokens - 1.0)
            return self._tokens > self._max / 2

    @property
    def tokens(self) -> float:
        """Number of tokens that are left. Retries need more than half of `max_tokens`."""
        return self._tokens


def parse_pushback(value: str) -> float | None:
    """Return the wait in seconds that the server requests, or None if it requests no retry.

    By gRFC A6, a value that is not a non-negative 32-bit integer means "do not retry".

    Args:
        value: The value of `grpc-retry-pushback-ms`.
    """
    if value.isascii() and value.isdigit() and int(value) <= 2**31 - 1:
        return int(value) / 1000
    return None


def read_pushback(trailing: object) -> str | None:
    """Return the server's pushback from a failed call's trailing metadata (pairs of key and value)."""
    for key, value in cast("Iterable[tuple[str, str | bytes]]", trailing or ()):
        if key == PUSHBACK_KEY:
            return value if isinstance(value, str) else value.decode("ascii", "replace")
    return None


def wait_before_retry(
    policy: RetryPolicy,
    budget: RetryBudget,
    failure: Failure,
    *,
    attempt: int,
    remaining: float,
    random: Callable[[], float],
) -> float | None:
    """Return the seconds to wait before the next attempt, or None if the call ends.

    Args:
        policy: The client's settings.
        budget: The client's token bucket; a failure with UNAVAILABLE takes a token.
        failure: The failure of the attempt.
        attempt: Number of the attempt, from 1.
        remaining: Seconds until the call's deadline.
        random: Returns a number that is uniform on [0, 1).
    """
    if failure.code is not grpc.StatusCode.UNAVAILABLE:
        return None
    allowed = budget.failed()
    if attempt >= policy.attempts or not allowed:
        return None
    if failure.pushback is not None:
        wait = parse_pushback(failure.pushback)
        if wait is None:
            return None
    else:
        wait = random() * min(policy.cap_s, policy.base_s * 2 ** (attempt - 1))
    # A wait beyond the deadline would only delay the error.
    return wait if wait < remaining else None
