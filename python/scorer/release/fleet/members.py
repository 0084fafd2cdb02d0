"""What is known of a server of the fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from scorer.release.errors import UnreachableError
from scorer.release.model import LaneSpec


class StaleError(UnreachableError):
    """A server's lane table has been replaced since its status was read; read it again and decide anew."""


@dataclass(frozen=True, slots=True)
class Member:
    """One server that the platform manages."""

    name: str
    control: str
    """`host:port` of its control service."""
    role: str = "live"
    """`live` or `shadow`."""
    log: Path | None = None
    """Its decision log, where this machine can read it."""


@dataclass(frozen=True, slots=True)
class BrokenGlass:
    """A change of a managed checkpoint that was made at the server with `--break-glass`."""

    at: datetime
    by: str
    """As the caller gave it: the control service authenticates nobody."""
    reason: str
    lane_table: int
    """The server's first table with it."""


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """A checkpoint at one server."""

    kind: str
    following: str
    answer: tuple[LaneSpec, ...]
    observe: tuple[LaneSpec, ...]
    managed_by: str = ""
    """The platform that the server takes lanes from; empty: none."""
    drift: str = ""
    """Where the alias of a managed checkpoint points, when that is not served."""
    break_glass: BrokenGlass | None = None


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
