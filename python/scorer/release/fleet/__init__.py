"""The servers that the platform speaks to, over their control service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scorer.release.model import LaneSpec


@dataclass(frozen=True, slots=True)
class Member:
    """One server."""

    name: str
    control: str
    """`host:port` of its control service."""
    role: str = "live"
    """`live` or `shadow`."""
    log: Path | None = None
    """Its decision log, where this machine can read it."""


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """A checkpoint at one server."""

    kind: str
    following: str
    answer: tuple[LaneSpec, ...]
    observe: tuple[LaneSpec, ...]


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """What a server says of itself."""

    reachable: bool
    error: str = ""
    state: str = ""
    lane_table: int = 0
    checkpoints: Mapping[str, CheckpointStatus] | None = None
    observers: Sequence[Mapping[str, Any]] = ()
    bundles: Sequence[Mapping[str, Any]] = ()
    raw: Mapping[str, Any] | None = None


class Fleet:
    """Calls one server at a time; a server that does not answer raises UnreachableError."""

    def __init__(self, members: Sequence[Member]) -> None:
        raise NotImplementedError

    @property
    def members(self) -> Sequence[Member]:
        """All of them."""
        raise NotImplementedError

    def status(self, member: Member) -> MemberStatus:
        """Never raises: a server that is away says so."""
        raise NotImplementedError

    def set_answer(self, member: Member, checkpoint: str, lanes: Sequence[LaneSpec], *, reason: str) -> None:
        """Replaces answer lanes. Raises UnreachableError, or PlatformError with the server's refusal."""
        raise NotImplementedError

    def set_observers(
        self, member: Member, checkpoint: str, lanes: Sequence[LaneSpec], *, reason: str
    ) -> None:
        """Replaces observe lanes."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes the channels."""
        raise NotImplementedError
