"""Bookings of shadow slots, and freezes."""

from __future__ import annotations

from scorer.release.calendar.calendar import Calendar, moment
from scorer.release.calendar.model import Free, Page, Slot

__all__ = ["Calendar", "Free", "Page", "Slot", "moment"]
