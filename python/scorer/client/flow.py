"""The interface between the client's logic and its transports.

The logic (`core`) is a generator without I/O. It yields `Send` and `Sleep`. A driver executes them, blocking
or with asyncio, and sends the reply's bytes or a `Failure` back into the generator.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import grpc


class Hedges(Protocol):
    """When a request is sent a second time while its first copy may still be answered (`hedging.Hedging`)."""

    @property
    def delay(self) -> float:
        """Seconds to wait for the first copy."""

    def may_send(self) -> bool:
        """Take a token for a second copy; return whether it may be sent."""

    def answered(self, *, was_slower: bool) -> None:
        """Account for an answer, and whether it took longer than the delay."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send one unary request.

    Attributes:
        method: Full path, "/package.Service/Method".
        payload: The encoded request.
        timeout: Time limit of the attempt in seconds, above 0.
        wait_for_ready: Whether to wait for a connection if there is none, instead of failing.
        hedging: When to send a second copy; None: never. The first answer is the outcome, and the other copy
            is cancelled. If both copies fail, the outcome is the failure of the later one.
    """

    method: str
    payload: bytes
    timeout: float
    wait_for_ready: bool = False
    hedging: Hedges | None = None


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait for `seconds` before the next step."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt.

    Attributes:
        code: The gRPC status.
        details: The message of the server or the transport.
        pushback: Value of the trailer `grpc-retry-pushback-ms`, not parsed; None if absent.
    """

    code: grpc.StatusCode
    details: str = ""
    pushback: str | None = None


Step: TypeAlias = Send | Sleep
Outcome: TypeAlias = bytes | Failure | None
T = TypeVar("T")
Flow: TypeAlias = Generator[Step, Outcome, T]
