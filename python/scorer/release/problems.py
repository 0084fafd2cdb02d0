"""What each refusal is called over HTTP: what REST answers with and `scorer.sdk` raises again."""

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
    UnreachableError,
)

PREFIX = "urn:scorer:problem:"


class Kind(NamedTuple):
    """A class of refusals (RFC 9457)."""

    name: str
    """The last part of its `type`."""
    status: int
    title: str
    error: type[ScorerError]

    @property
    def type(self) -> str:
        """Its URI; stays the same whatever the words."""
        return PREFIX + self.name


KINDS = (
    Kind("not-authenticated", 401, "Nobody known asks", NotAuthenticatedError),
    Kind("not-allowed", 403, "Not allowed", NotAllowedError),
    Kind("not-found", 404, "No such thing, or not for you", NotFoundError),
    Kind("conflict", 409, "Somebody else was first", ConflictError),
    Kind("refused", 409, "Refused by a server", RefusedError),
    Kind("invalid", 422, "Not as documented", InvalidError),
    Kind("frozen", 423, "A freeze is in force", FrozenError),
    Kind("quota", 429, "The project has used up what it may take", QuotaError),
    Kind("unreachable", 503, "A server or the registry does not answer", UnreachableError),
    Kind("unreachable", 503, "A server or the registry does not answer", RegistryUnavailableError),
    Kind("unreachable", 503, "A decision log cannot be read", LogError),
    Kind("failed", 409, "Not done", PlatformError),
)
INTERNAL = Kind("internal", 500, "A mistake of the platform", PlatformError)


def kind_of(error: ScorerError) -> Kind:
    """How an error is answered; what nobody foresaw is internal and shows nothing of itself."""
    return next((kind for kind in KINDS if isinstance(error, kind.error)), INTERNAL)


def error_of(type_: str, status: int) -> type[PlatformError]:
    """The class to raise again; by the status where a proxy answered in words of its own."""
    name = type_.removeprefix(PREFIX)
    for kind in KINDS:
        if kind.name == name and issubclass(kind.error, PlatformError):
            return kind.error
    for kind in KINDS[:-1]:
        if kind.status == status and issubclass(kind.error, PlatformError):
            return kind.error
    return UnreachableError if status in (502, 504) else PlatformError
