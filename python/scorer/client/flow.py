"""The interface between the client's logic and its transports.

The logic (`core`) is a generator without I/O. It yields `Send` and `Sleep`. A driver executes them, blocking
or with asyncio, and sends the reply's bytes or a `Failure` back into the generator.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import grpc


@dataclass(frozen=True, slots=True)
class Send:
    """Send one unary request.

    Attributes:
        method: Full path, "/package.Service/Method".
        payload: The encoded request.
        timeout: Time limit of the attempt in seconds, above 0.
        wait_for_ready: Whether to wait for a connection if there is none, instead of failing.
    """

    method: str
    payload: bytes
    timeout: float
    wait_for_ready: bool = False


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
