"""Which platform manages a checkpoint, and the exception to it.

At a managed checkpoint, answer lanes are changed by the platform's change requests. A person at the command
line who has to change them all the same breaks the glass: with a reason, which the server logs, reports in
its status and keeps across restarts.
"""

from __future__ import annotations

from dataclasses import dataclass

from scorer.errors import InvalidLanesError, ManagedCheckpointError

_MOST = 500
"""Characters of a name or a reason that are kept."""


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf a change is asked for, as the caller says: the control service authenticates nobody."""

    platform: str = ""
    """The platform that makes the change; empty: none."""
    break_glass: bool = False
    """Make it although another one manages the checkpoint."""
    by: str = ""
    """Who makes it, for the log."""


@dataclass(frozen=True, slots=True)
class BreakGlass:
    """A change of a managed checkpoint that its platform did not make."""

    at_ms: int
    by: str
    reason: str
    lane_table: int
    """The first table with it."""


NOBODY = Caller()


def breaks_glass(checkpoint: str, managed_by: str, caller: Caller, reason: str) -> bool:
    """Return whether this change is an exception to a platform's management.

    Args:
        checkpoint: Where.
        managed_by: The platform that manages it; empty: none does.
        caller: Who asks.
        reason: Why.

    Raises:
        ManagedCheckpointError: Another platform manages it, and the caller does not break the glass.
        InvalidLanesError: The caller breaks the glass without a reason.
    """
    if not managed_by or caller.platform == managed_by:
        return False
    if not caller.break_glass:
        raise ManagedCheckpointError(
            f'checkpoint "{checkpoint}" is managed by the platform "{managed_by}"; draft a change request '
            "there (`scorer change`), or add --break-glass with a --reason in an emergency"
        )
    if not reason.strip():
        raise InvalidLanesError(
            f'checkpoint "{checkpoint}" is managed by the platform "{managed_by}"; --break-glass takes a '
            "--reason, which is kept"
        )
    return True


def record_of(caller: Caller, reason: str, *, at_ms: int, lane_table: int) -> BreakGlass:
    """What is kept of an exception."""
    return BreakGlass(at_ms, caller.by[:_MOST], reason.strip()[:_MOST], lane_table)
