"""Bookings of a checkpoint's slots, and freezes."""

from __future__ import annotations

from scorer.release.answers import CalendarPage, Free, Slot
from scorer.release.calendar.calendar import Calendar, moment

__all__ = ["Calendar", "CalendarPage", "Free", "Slot", "moment"]
