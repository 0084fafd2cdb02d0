"""Servers of the fleet and their statuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from scorer.release.errors import UnreachableError
from scorer.release.model import LaneSpec


class StaleError(UnreachableError):
    """A server's lane table was replaced after its status was read. Read the status and decide again."""


@dataclass(frozen=True, slots=True)
class Member:
    """One server that the platform manages."""

    name: str
    control: str
    """Address of its control service, as `host:port`."""
    role: str = "live"
    """`live` or `shadow`."""
    log: Path | None = None
    """Directory of its decision log; None: this machine cannot read it."""


@dataclass(frozen=True, slots=True)
class BrokenGlass:
    """A change of a managed checkpoint that was made at the server with `--break-glass`."""

    at: datetime
    by: str
    """Name that the caller stated. It is not authenticated."""
    reason: str
    lane_table: int
    """Version of the server's first lane table with the change."""


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """Status of a checkpoint at one server."""

    kind: str
    following: str
    answer: tuple[LaneSpec, ...]
    observe: tuple[LaneSpec, ...]
    managed_by: str = ""
    """Name of the platform that manages the checkpoint; empty: none."""
    drift: str = ""
    """Digest that a managed checkpoint's alias points to, if the server does not serve it."""
    break_glass: BrokenGlass | None = None


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """Status of a server when it was last read."""

    reachable: bool
    error: str = ""
    state: str = ""
    lane_table: int = 0
    checkpoints: Mapping[str, CheckpointStatus] | None = None
    observers: Sequence[Mapping[str, Any]] = ()
    """Counters of the observe lanes, as `ObserverStatus` of control.proto."""
    bundles: Sequence[Mapping[str, Any]] = ()
    raw: Mapping[str, Any] | None = None
    """The `GetStatusResponse`, each field by its name."""
    role: str = ""
    """Role that the server reports, which may differ from the settings; empty: it is unreachable."""
    pool: Mapping[str, Any] | None = None
    """Connection to the shadow pool, as `PoolStatus`; None: the server has none."""
