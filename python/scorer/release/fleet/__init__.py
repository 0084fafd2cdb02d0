"""Client of the control services of the servers that the platform manages."""

from __future__ import annotations

from scorer.release.fleet.calls import Fleet
from scorer.release.fleet.members import BrokenGlass, CheckpointStatus, Member, MemberStatus, StaleError
from scorer.release.fleet.statuses import Parallel, Spread, Statuses

__all__ = [
    "BrokenGlass",
    "CheckpointStatus",
    "Fleet",
    "Member",
    "MemberStatus",
    "Parallel",
    "Spread",
    "StaleError",
    "Statuses",
]
