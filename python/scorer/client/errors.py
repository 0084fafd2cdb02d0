"""Errors that a call of the client can raise.

ClientError
├── InvalidRequestError     the request violates a rule; the same request fails again
│   └── InvalidTargetError  the server's address is not valid
├── CheckpointNotFoundError the server has no such checkpoint
├── PreconditionError       the server's state does not allow the call
│   └── SchemaChangedError  dense values were ordered by another schema
├── IdConflictError         the id was already used with other content
├── AccessError             credentials are missing or not sufficient
├── UnsupportedError        the server does not have this service or method
├── UnavailableError        the server cannot be reached
├── DeadlineExceededError   no answer within the call's timeout
├── OverloadedError         the server rejected the request for lack of capacity
├── ServerFaultError        an internal error of the server
├── CallCancelledError      the call was cancelled
└── ClientUseError          the client was used after close() or after a fork
"""

from __future__ import annotations

import grpc

from scorer.errors import ClientError

__all__ = [
    "AccessError",
    "CallCancelledError",
    "CheckpointNotFoundError",
    "ClientError",
    "ClientUseError",
    "DeadlineExceededError",
    "IdConflictError",
    "InvalidRequestError",
    "InvalidTargetError",
    "OverloadedError",
    "PreconditionError",
    "SchemaChangedError",
    "ServerFaultError",
    "UnavailableError",
    "UnsupportedError",
]


class InvalidRequestError(ClientError):
    """The request violates a rule. The same request fails again."""


class InvalidTargetError(InvalidRequestError):
    """The server's address is not valid."""


class CheckpointNotFoundError(ClientError):
    """The server has no such checkpoint."""

    default_remedy = "checkpoints() lists those that the server has"


class PreconditionError(ClientError):
    """The server's state does not allow the call."""


class SchemaChangedError(PreconditionError):
    """Dense values were ordered by a schema that the server no longer serves.

    Every dense call raises it until `use_schema()` sets the schema that the values now follow. The client
    cannot adapt by itself, because it does not know in which order the caller puts the values.

    Attributes:
        expected: Fingerprint of the schema that the values were sent with.
        actual: Fingerprint of the schema that the server serves now.
    """

    default_remedy = (
        "order the values by describe().features and call use_schema() with that description, "
        "or send the features by name"
    )

    def __init__(
        self,
        message: str,
        *,
        expected: int,
        actual: int,
        code: str = "",
        checkpoint: str = "",
        request_id: str = "",
        attempts: int = 0,
    ) -> None:
        super().__init__(message, code=code, checkpoint=checkpoint, request_id=request_id, attempts=attempts)
        self.expected = expected
        self.actual = actual


class IdConflictError(ClientError):
    """The id was already used with other content."""

    default_remedy = "use one id per request; a retry must repeat the content as well"


class AccessError(ClientError):
    """Credentials are missing or not sufficient."""


class UnsupportedError(ClientError):
    """The server does not have this service or method."""

    default_remedy = "check that the target is the scoring port of a scorer server of at least this version"


class UnavailableError(ClientError):
    """The server cannot be reached."""

    default_remedy = "check that the server runs and is ready; fallback= gives an answer without it"


class DeadlineExceededError(ClientError):
    """There was no answer within the call's timeout."""

    default_remedy = "raise timeout= or pass fallback= to be given an answer in time"


class OverloadedError(ClientError):
    """The server rejected the request for lack of capacity."""

    default_remedy = "send less, or pass fallback= to be given an answer"


class ServerFaultError(ClientError):
    """An internal error of the server."""

    default_remedy = "the server's log has the details"


class CallCancelledError(ClientError):
    """The call was cancelled before it was answered."""


class ClientUseError(ClientError):
    """The client was used after `close()`, or in a process that was forked after its creation."""


_BY_CODE: dict[grpc.StatusCode, type[ClientError]] = {
    grpc.StatusCode.CANCELLED: CallCancelledError,
    grpc.StatusCode.UNKNOWN: ServerFaultError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.NOT_FOUND: CheckpointNotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: IdConflictError,
    grpc.StatusCode.PERMISSION_DENIED: AccessError,
    grpc.StatusCode.UNAUTHENTICATED: AccessError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionError,
    grpc.StatusCode.ABORTED: ServerFaultError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedError,
    grpc.StatusCode.INTERNAL: ServerFaultError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DATA_LOSS: ServerFaultError,
}


def error_class(code: grpc.StatusCode) -> type[ClientError]:
    """Return the class of the error that a failed call with this gRPC status raises."""
    return _BY_CODE[code]
