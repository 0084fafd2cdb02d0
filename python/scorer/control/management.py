"""Management of checkpoints by a platform, and break-glass changes.

The answer lanes of a managed checkpoint are changed by the platform's change requests. In an emergency a
user can change them with a break-glass call, which requires a reason. The server logs the reason, reports it
in its status and keeps it across restarts.
"""

from __future__ import annotations

from dataclasses import dataclass

from scorer.errors import InvalidLanesError, ManagedCheckpointError

_MOST = 500
"""Largest number of characters of a name or a reason; the rest is cut."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The origin of a change, as the request states it.

    The names are not verified: callers are authenticated only if the settings contain grants, and then for
    the role `operate` as a whole.
    """

    platform: str = ""
    """The platform that makes the change; empty if none does."""
    break_glass: bool = False
    """Whether to make the change although another platform manages the checkpoint."""
    by: str = ""
    """Name of the user, for the log."""


@dataclass(frozen=True, slots=True)
class BreakGlass:
    """A change of a managed checkpoint that its platform did not make."""

    at_ms: int
    by: str
    reason: str
    lane_table: int
    """Version of the first lane table with the change."""


NOBODY = Caller()


def breaks_glass(checkpoint: str, managed_by: str, caller: Caller, reason: str) -> bool:
    """Return whether a change is a break-glass change.

    Args:
        checkpoint: Name of the checkpoint.
        managed_by: The platform that manages the checkpoint; empty if none does.
        caller: The origin of the change.
        reason: The reason for the change.

    Raises:
        ManagedCheckpointError: Another platform manages the checkpoint, and `break_glass` is not set.
        InvalidLanesError: `break_glass` is set without a reason.
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
    """Return the record of a break-glass change, for the status and the state file.

    Args:
        caller: The origin of the change.
        reason: The reason for the change.
        at_ms: Time of the change in milliseconds since the Unix epoch.
        lane_table: Version of the first lane table with the change.
    """
    return BreakGlass(at_ms, caller.by[:_MOST], reason.strip()[:_MOST], lane_table)
