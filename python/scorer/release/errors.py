"""What the platform refuses: each names the thing, the rule and the remedy; the web maps them to statuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scorer.errors import ScorerError

if TYPE_CHECKING:
    from scorer.release.answers import Free


class PlatformError(ScorerError):
    """Something that was asked of the platform is not done; nothing changed."""

    free: Free | None = None
    """Where a booking was rejected: the next slot that is free."""


class NotFoundError(PlatformError):
    """There is no such thing, or the caller cannot see it."""


class NotAuthenticatedError(PlatformError):
    """The request carries no token, or one that is wrong, expired or revoked."""


class NotAllowedError(PlatformError):
    """The caller lacks the role, or would decide on a change request of their own."""


class InvalidError(PlatformError):
    """The request is not as documented."""


class ConflictError(PlatformError):
    """Somebody else was first: another version, an overlapping booking, a state that has moved on."""


class FrozenError(PlatformError):
    """A freeze is in force."""


class QuotaError(PlatformError):
    """The project has used up what it may take."""


class ThrottledError(PlatformError):
    """Too many failed sign-ins.

    Args:
        message: The refusal.
        retry_after: Seconds to wait.
    """

    def __init__(self, message: str, *, retry_after: int = 60) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RefusedError(InvalidError):
    """A server of the fleet refuses: a bundle that does not load, lanes that make no table."""


class UnreachableError(PlatformError):
    """A server of the fleet, or the registry, does not answer; worth another try."""
