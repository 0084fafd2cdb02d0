"""The servers that the platform speaks to, over their control service."""

from __future__ import annotations

from scorer.release.fleet.calls import Fleet
from scorer.release.fleet.members import CheckpointStatus, Member, MemberStatus

__all__ = ["CheckpointStatus", "Fleet", "Member", "MemberStatus"]
