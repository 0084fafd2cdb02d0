"""Checkpoints: what answers and observes there, as recorded and as every server says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scorer.release.model import Actor, LaneSpec, RecordedTable


@dataclass(frozen=True, slots=True)
class MemberView:
    """One server as it is now."""

    name: str
    role: str
    """`live` or `shadow`."""
    reachable: bool
    error: str
    in_step: bool
    """Its lanes are the recorded ones."""
    answer: tuple[LaneSpec, ...]
    observe: tuple[LaneSpec, ...]
    observers: Sequence[Mapping[str, Any]]
    """Counters, as `ObserverStatus` of control.proto."""


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A checkpoint with its lanes."""

    name: str
    kind: str
    alias: str
    p99_ms: float
    slots: int
    sample: float
    filter: str
    pool: bool
    recorded: RecordedTable | None
    members: tuple[MemberView, ...]


class Checkpoints:
    """What is where."""

    def list(self, actor: Actor) -> Sequence[CheckpointView]:
        """Every one that he may see."""
        raise NotImplementedError

    def view(self, actor: Actor, checkpoint: str) -> CheckpointView:
        """One of them."""
        raise NotImplementedError

    def history(self, actor: Actor, checkpoint: str, *, limit: int = 100) -> Sequence[RecordedTable]:
        """Recorded tables, newest first."""
        raise NotImplementedError

    def set_sampling(
        self,
        actor: Actor,
        checkpoint: str,
        *,
        sample: float,
        filter: str = "",  # noqa: A002 - as lanes have it
        pool: bool | None = None,
    ) -> CheckpointView:
        """Owners: what the shadow is fed with from now on, running lanes included."""
        raise NotImplementedError

    def rollback(self, actor: Actor, checkpoint: str, *, reason: str) -> RecordedTable:
        """One call, always: the answer lanes before these; a release under way ends rolled back."""
        raise NotImplementedError

    def rolled_back_at(self, checkpoint: str) -> datetime | None:
        """When that was done last."""
        raise NotImplementedError
