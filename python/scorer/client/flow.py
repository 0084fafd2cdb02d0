"""How the client's logic talks to a transport: a generator that yields what to do.

The logic (`core`) never touches a socket or a clock of its own. It yields `Send` and
`Sleep`; a driver does it, blocking or awaiting, and sends back the reply's bytes or a
`Failure`. The two clients are two small drivers over one logic.
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
        timeout: Seconds until the attempt is given up, > 0.
        wait_for_ready: Wait for a connection instead of failing while there is none.
    """

    method: str
    payload: bytes
    timeout: float
    wait_for_ready: bool = False


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait before the next step."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt.

    Attributes:
        code: The gRPC status.
        details: The server's or transport's message.
        pushback: Value of `grpc-retry-pushback-ms`, as it came; None if absent.
    """

    code: grpc.StatusCode
    details: str = ""
    pushback: str | None = None


Step: TypeAlias = Send | Sleep
Outcome: TypeAlias = bytes | Failure | None
T = TypeVar("T")
Flow: TypeAlias = Generator[Step, Outcome, T]
