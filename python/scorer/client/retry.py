"""When a failed attempt may be repeated, and after how long."""

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
    """How often and how fast to repeat a call that the server was not available for.

    Only UNAVAILABLE is ever repeated, inside the call's one deadline and with its one
    request id. Waits are drawn uniformly from [0, min(cap, base * 2**n)].

    Attributes:
        attempts: Most times that one request is sent; 1 turns retries off.
        base_s: Upper end of the first wait, seconds.
        cap_s: Upper end of any wait, seconds.
        max_tokens: Size of the budget shared by all calls of a client. Each failure
            takes a token, and retries stop while half of them or fewer are left, so that
            an outage is not met with a multiple of the traffic.
        token_ratio: What a success gives back.
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
    """The token bucket of gRFC A6: a retry needs more than half of the tokens."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._max = policy.max_tokens
        self._ratio = policy.token_ratio
        self._tokens = policy.max_tokens
        self._lock = threading.Lock()

    def succeeded(self) -> None:
        """Give back a fraction of a token."""
        # A full bucket is the usual case, and reading a float needs no lock.
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
        """Number of retries that the budget still allows."""
        return self._tokens


def parse_pushback(value: str) -> float | None:
    """Seconds that the server asks to wait; None if it asks not to come back.

    By gRFC A6, anything that is not a non-negative 32-bit integer means "do not retry".
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
    """Seconds to wait before the next attempt, or None to give up.

    Args:
        policy: The client's settings.
        budget: The client's shared token bucket; a retryable failure is charged to it.
        failure: How the attempt ended.
        attempt: Its number, from 1.
        remaining: Seconds left of the call's deadline.
        random: Uniform on [0, 1).
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
    # A wait that ends after the deadline only delays the bad news.
    return wait if wait < remaining else None
