"""What the platform refuses: each names the thing, the rule and the remedy; the web maps them to statuses."""

from __future__ import annotations

from scorer.errors import ScorerError


class PlatformError(ScorerError):
    """Something that was asked of the platform is not done; nothing changed."""


class NotFoundError(PlatformError):
    """There is no such thing, or not for whoever asks."""


class NotAuthenticatedError(PlatformError):
    """Nobody known asks: no, a wrong, an expired or a revoked token."""


class NotAllowedError(PlatformError):
    """Who asks has not the role that it takes, or may not do it to a change of his own."""


class InvalidError(PlatformError):
    """What was asked is not as documented."""


class ConflictError(PlatformError):
    """Somebody else was first: another version, an overlapping booking, a state that has moved on."""


class FrozenError(PlatformError):
    """A freeze is in force."""


class QuotaError(PlatformError):
    """The project has used up what it may take."""


class RefusedError(InvalidError):
    """A server of the fleet refuses: a bundle that does not load, lanes that make no table."""


class UnreachableError(PlatformError):
    """A server of the fleet, or the registry, does not answer; worth another try."""


class StaleError(UnreachableError):
    """A server's lane table has been replaced since its status was read; read it again and decide anew."""
