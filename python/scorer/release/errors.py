"""Errors of the platform. The web layer maps each class to an HTTP status.

Every message names the object, the rule and the remedy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scorer.errors import ScorerError

if TYPE_CHECKING:
    from scorer.release.answers import Free


class PlatformError(ScorerError):
    """The platform rejected a request and changed nothing."""

    free: Free | None = None
    """The next free slot, if a booking was rejected."""


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


class UnreachableError(PlatformError):
    """A server or the registry does not respond. The call can be retried."""
