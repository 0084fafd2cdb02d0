"""The calendar of bookings and freezes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.calendar import CalendarPage, Slot
from scorer.release.errors import PlatformError
from scorer.release.model import Booking, FreezeWindow
from scorer.release.requests import NewFreeze, Rebook
from scorer.web import words
from scorer.web.pages.visit import Form, Here, Posted, Visit

router = APIRouter()

# In per cent of a row of about 800 px, so that a booking of one minute is visible and can be clicked.
_LEAST_WIDTH = 0.8
_LABEL_WIDTH = 6.0


@dataclass(frozen=True)
class Bar:
    """A bar in a row of the calendar, with its position in per cent of the row's width."""

    left: float
    width: float
    booking: Booking | None = None
    window: FreezeWindow | None = None
    mine: bool = False
    ended: bool = False

    @property
    def labelled(self) -> bool:
        """Whether the label fits into the bar. A narrower bar has only a title."""
        return self.width >= _LABEL_WIDTH

    @property
    def words(self) -> str:
        """Describe the bar in a sentence."""
        if self.booking:
            one = self.booking
            return (
                f"{words.KINDS[one.kind]} {one.change}, {one.project}, {one.user}: "
                f"{one.checkpoint} slot {one.slot}, "
                f"{one.start:%a %d %b %H:%M} to {one.end:%a %d %b %H:%M} UTC"
            )
        assert self.window  # noqa: S101 - one of the two
        one_freeze = self.window.freeze
        return (
            f"Freeze {one_freeze.name}{f' ({one_freeze.reason})' if one_freeze.reason else ''}: "
            f"{self.window.start:%a %d %b %H:%M} to {self.window.end:%a %d %b %H:%M} UTC"
        )


@dataclass(frozen=True)
class Row:
    """A slot with its bars."""

    slot: Slot
    bars: tuple[Bar, ...]
    freezes: tuple[Bar, ...]


@router.get("/calendar")
def calendar(here: Here) -> Response:
    """Show the calendar of bookings and freezes."""
    return _show(here)


def _show(here: Visit, *, form: Form | None = None, error: PlatformError | None = None) -> Response:
    days = 1 if here.ask("days") == "1" else 7
    start = _midnight(here.ask_moment("from") or here.now)
    end = start + timedelta(days=days)
    only = here.ask("checkpoint")
    page = here.service.calendar.page(here.actor, start, end, checkpoint=only or None)
    minutes = here.ask_number("minutes", 60.0, low=1, high=100_000)
    free, none_free = None, ""
    if here.ask("find"):
        try:
            free = here.service.calendar.next_free(
                here.actor,
                only or next(iter(here.settings.checkpoints)),
                timedelta(minutes=minutes),
                after=here.now,
            )
        except PlatformError as problem:
            none_free = str(problem)
    return here.page(
        "calendar.html",
        error=error,
        start=start,
        end=end,
        days=days,
        only=only,
        minutes=minutes,
        rows=_rows(page, here),
        ticks=_ticks(start, days),
        line=_place(here.now, start, end) if start <= here.now < end else None,
        mine=_movable(here, page.bookings),
        bookings=sorted((one for one in page.bookings if one.end > one.start), key=lambda one: one.start),
        windows=sorted(page.windows, key=lambda one: one.start),
        freezes=here.service.calendar.freezes(here.actor),
        checkpoints=here.settings.checkpoints,
        free=free,
        none_free=none_free,
        earlier=start - timedelta(days=days),
        later=end,
        form=form.values() if form else {},
    )


def _midnight(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def _place(at: datetime, start: datetime, end: datetime) -> float:
    return round(100 * min(1.0, max(0.0, (at - start) / (end - start))), 4)


def _rows(page: CalendarPage, here: Visit) -> list[Row]:
    rows = []
    for slot in page.slots:
        bars = [
            Bar(
                *_span(one.start, one.end, page),
                booking=one,
                mine=one.user == here.actor.user,
                ended=not one.active or one.end <= here.now,
            )
            for one in page.bookings
            if (one.checkpoint, one.slot) == (slot.checkpoint, slot.number) and one.end > one.start
        ]
        freezes = [
            Bar(*_span(one.start, one.end, page), window=one)
            for one in page.windows
            if one.freeze.kind == "deny" and _covers(one, slot.checkpoint)
        ]
        rows.append(Row(slot, tuple(bars), tuple(freezes)))
    return rows


def _covers(window: FreezeWindow, checkpoint: str) -> bool:
    from fnmatch import fnmatchcase

    return any(fnmatchcase(checkpoint, pattern) for pattern in window.freeze.checkpoints)


def _span(start: datetime, end: datetime, page: CalendarPage) -> tuple[float, float]:
    left = _place(start, page.start, page.end)
    return left, max(_LEAST_WIDTH, _place(end, page.start, page.end) - left)


def _ticks(start: datetime, days: int) -> list[tuple[float, str]]:
    if days == 1:
        return [(hour / 24 * 100, f"{hour:02}:00") for hour in range(0, 24, 2)]
    return [(day / days * 100, f"{start + timedelta(days=day):%a %d %b}") for day in range(days)]


def _movable(here: Visit, bookings: Sequence[Booking]) -> list[Booking]:
    """Return the visitor's bookings that have not begun."""
    return [one for one in bookings if one.active and one.user == here.actor.user and one.start > here.now]


@router.post("/calendar/move")
def move(here: Here, form: Posted) -> Response:
    """Move a booking to another slot or time."""
    try:
        change = form.text("change", what="the change request")
        here.service.changes.rebook(here.actor, change, **dict(form.read(Rebook)))
    except PlatformError as error:
        return _show(here, form=form, error=error)
    shown = {name: here.ask(name) for name in ("from", "days", "checkpoint")}
    return here.go("/calendar", "rebook", parameters=shown)


@router.post("/calendar/freezes")
def add_freeze(here: Here, form: Posted) -> Response:
    """Add a freeze from the calendar's form."""
    try:
        here.service.calendar.add_freeze(here.actor, form.read(NewFreeze))
    except PlatformError as error:
        return _show(here, form=form, error=error)
    return here.go("/calendar", "freeze")


@router.post("/calendar/freezes/{freeze}/remove")
def remove_freeze(here: Here, freeze: int, form: Posted) -> Response:
    """Remove a freeze, so that changes are allowed again."""
    try:
        here.service.calendar.remove_freeze(here.actor, freeze)
    except PlatformError as error:
        return _show(here, error=error)
    return here.go("/calendar", "freeze-removed")
