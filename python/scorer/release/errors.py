"""Errors of the platform. The web layer maps each class to an HTTP status.

Every message names the object, the rule and the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scorer.errors import ScorerError


@dataclass(frozen=True, slots=True)
class Remedy:
    """Fields of a rejected request with values that are accepted. A page offers it as a button."""

    label: str
    """Text of the button."""
    values: Mapping[str, str]
    """Values by field; empty: the field is left out."""


class PlatformError(ScorerError):
    """The platform rejected a request and changed nothing."""

    remedy: Remedy | None = None
    """A change of the request that is accepted; None: the message names what to do."""


class NotFoundError(PlatformError):
    """The object does not exist, or the caller may not see it."""


class NotAuthenticatedError(PlatformError):
    """The request has no token, or its token is unknown, expired or revoked."""


class NotAllowedError(PlatformError):
    """The caller lacks the required role, or is the author of the change request to decide on."""


class InvalidError(PlatformError):
    """The request violates the documented format or a documented limit."""


class ConflictError(PlatformError):
    """The request conflicts with a newer version, an overlapping booking or the present state."""


class FrozenError(PlatformError):
    """A freeze is in force."""


class QuotaError(PlatformError):
    """The project has reached one of its quotas."""


class ThrottledError(PlatformError):
    """The source has failed to sign in too often.

    Args:
        message: Text of the error.
        retry_after: Seconds until the next attempt is accepted.
    """

    def __init__(self, message: str, *, retry_after: int = 60) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RefusedError(InvalidError):
    """A server rejected a bundle that does not load, or lanes that do not form a valid table."""


class TimedOutError(PlatformError):
    """An operation has reached its time limit."""


class UnreachableError(PlatformError):
    """A server or the registry does not respond. The call can be retried."""
