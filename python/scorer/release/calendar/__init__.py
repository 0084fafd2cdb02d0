"""Bookings of shadow slots, and freezes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from scorer.release.model import Actor, Booking, ChangeKind, Freeze, FreezeWindow
from scorer.release.store import Store

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in the shadow of a checkpoint."""

    checkpoint: str
    number: int


@dataclass(frozen=True, slots=True)
class Free:
    """When something fits."""

    checkpoint: str
    slot: int
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that a calendar shows between two moments."""

    start: datetime
    end: datetime
    slots: tuple[Slot, ...]
    bookings: tuple[Booking, ...]
    windows: tuple[FreezeWindow, ...]


class Calendar:
    """Who has which slot when, and when nothing moves."""

    def __init__(self, store: Store) -> None:
        raise NotImplementedError

    def page(self, actor: Actor, start: datetime, end: datetime, *, checkpoint: str | None = None) -> Page:
        """What is between two moments."""
        raise NotImplementedError

    def next_free(
        self, actor: Actor, checkpoint: str, length: timedelta, *, after: datetime | None = None
    ) -> Free:
        """The earliest slot that is free for so long, outside freezes."""
        raise NotImplementedError

    def book(
        self,
        connection: Connection,
        actor: Actor,
        *,
        change: str,
        project: str,
        kind: ChangeKind,
        checkpoint: str,
        start: datetime | None,
        length: timedelta,
        slot: int | None = None,
    ) -> Booking:
        """Takes a slot as part of the caller's transaction; `start` None: the next free one.

        Raises ConflictError (which names the next free slot), FrozenError, QuotaError or InvalidError.
        """
        raise NotImplementedError

    def give_back(self, connection: Connection, change: str, *, at: datetime) -> None:
        """Ends a change's booking, so that somebody else can have the rest of it."""
        raise NotImplementedError

    def frozen(self, checkpoint: str, at: datetime | None = None) -> FreezeWindow | None:
        """The window that forbids a change of what answers now; None: allowed."""
        raise NotImplementedError

    def freezes(self, actor: Actor) -> Sequence[Freeze]:
        """All of them."""
        raise NotImplementedError

    def add_freeze(
        self,
        actor: Actor,
        *,
        name: str,
        kind: str,
        cron: str,
        timezone: str,
        minutes: int,
        checkpoints: Sequence[str] = ("*",),
        reason: str = "",
    ) -> Freeze:
        """Admins."""
        raise NotImplementedError

    def remove_freeze(self, actor: Actor, freeze: int) -> None:
        """Admins."""
        raise NotImplementedError
