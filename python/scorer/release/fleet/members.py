"""What is known of a server of the fleet."""

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
    """Counters, as `ObserverStatus` of control.proto."""
    bundles: Sequence[Mapping[str, Any]] = ()
    raw: Mapping[str, Any] | None = None
    """`GetStatusResponse`, every field by its name."""
    role: str = ""
    """As the server says, which is not always what the settings say; empty where it does not answer."""
    pool: Mapping[str, Any] | None = None
    """What it sends to the shadow pool, as `PoolStatus`; None: nothing."""
