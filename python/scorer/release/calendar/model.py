"""What the calendar speaks of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from scorer.release.model import Booking, FreezeWindow


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
