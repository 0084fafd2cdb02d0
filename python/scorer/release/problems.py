"""Problem types of the REST API, which `scorer.sdk` converts back to exceptions."""

from __future__ import annotations

from typing import NamedTuple

from scorer.errors import LogError, RegistryUnavailableError, ScorerError
from scorer.release.errors import (
    ConflictError,
    FrozenError,
    InvalidError,
    NotAllowedError,
    NotAuthenticatedError,
    NotFoundError,
    PlatformError,
    QuotaError,
    RefusedError,
    ThrottledError,
    TimedOutError,
    UnreachableError,
)

PREFIX = "urn:scorer:problem:"


class Kind(NamedTuple):
    """A problem type (RFC 9457)."""

    name: str
    """The last part of its `type`."""
    status: int
    title: str
    error: type[ScorerError]

    @property
    def type(self) -> str:
        """URI of the problem type, which does not change when its title does."""
        return PREFIX + self.name


KINDS = (
    Kind("not-authenticated", 401, "Unauthenticated", NotAuthenticatedError),
    Kind("not-allowed", 403, "Permission denied", NotAllowedError),
    Kind("not-found", 404, "Not found", NotFoundError),
    Kind("conflict", 409, "Conflict", ConflictError),
    Kind("refused", 409, "Rejected by a server", RefusedError),
    Kind("invalid", 422, "Validation error", InvalidError),
    Kind("frozen", 423, "Frozen", FrozenError),
    Kind("quota", 429, "Quota exceeded", QuotaError),
    Kind("throttled", 429, "Too many requests", ThrottledError),
    Kind("timed-out", 504, "Time limit reached", TimedOutError),
    Kind("unreachable", 503, "Unavailable", UnreachableError),
    Kind("unreachable", 503, "Unavailable", RegistryUnavailableError),
    Kind("unreachable", 503, "Unavailable", LogError),
    Kind("failed", 409, "Rejected", PlatformError),
)
INTERNAL = Kind("internal", 500, "Internal error", PlatformError)


def kind_of(error: ScorerError) -> Kind:
    """Return the problem type of an error. An unexpected error is internal and shows no details."""
    return next((kind for kind in KINDS if isinstance(error, kind.error)), INTERNAL)


def error_of(type_: str, status: int) -> type[PlatformError]:
    """Return the exception class for a response, by its status if a proxy has responded instead."""
    name = type_.removeprefix(PREFIX)
    for kind in KINDS:
        if kind.name == name and issubclass(kind.error, PlatformError):
            return kind.error
    for kind in KINDS[:-1]:
        if kind.status == status and issubclass(kind.error, PlatformError):
            return kind.error
    return UnreachableError if status in (502, 504) else PlatformError
