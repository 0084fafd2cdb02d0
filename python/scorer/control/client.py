"""Client of the control service for the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import grpc

from scorer.credentials import CA, ClientTls, channel
from scorer.errors import ControlError, ControlUnavailableError
from scorer.v1 import control_pb2_grpc

_TIMEOUT_SECONDS = 60.0

Request = TypeVar("Request")
Response = TypeVar("Response")


@contextmanager
def connected(address: str) -> Iterator[control_pb2_grpc.ControlServiceStub]:
    """Yield a stub of the control service, over TLS if SCORER_TLS_CA is set.

    Args:
        address: host:port of the control service.

    Raises:
        ConfigError: The files that the SCORER_TLS_* variables name cannot be used.
    """
    with channel(address, ClientTls.from_environment()) as opened:
        yield control_pb2_grpc.ControlServiceStub(opened)


def call(method: Callable[..., Response], request: object, address: str) -> Response:
    """Call a method with a deadline of 60 s, because loading a large bundle may take seconds.

    Args:
        method: A method of the stub.
        request: The request message.
        address: Address of the control service, for messages.

    Raises:
        ControlUnavailableError: The control service cannot be reached, is stopping, or its registry cannot be
            read.
        ControlError: The control service rejected the call.
    """
    try:
        return method(request, timeout=_TIMEOUT_SECONDS)
    except grpc.RpcError as error:
        code, details = error.code(), error.details()
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            known = details if (details and "stopping" in details) or "registry" in (details or "") else None
            raise ControlUnavailableError(
                known
                or f"no control service responds at {address}; check that `scorer serve` runs there. If it "
                f"uses TLS, name its authority in {CA}"
            ) from None
        raise ControlError(f"{details} ({code.name})") from None
