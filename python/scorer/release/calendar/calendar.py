"""Bookings of a checkpoint's slots, and freezes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, insert, select, update

from scorer.cron import check as check_line
from scorer.release.answers import CalendarPage, Free, Slot
from scorer.release.calendar import bookings, frozen
from scorer.release.calendar.free import next_free
from scorer.release.errors import (
    ConflictError,
    FrozenError,
    InvalidError,
    NotAllowedError,
    NotFoundError,
    PlatformError,
    Remedy,
)
from scorer.release.model import Actor, Booking, ChangeRequest, Freeze, FreezeWindow
from scorer.release.requests import NewFreeze
from scorer.release.store import Store, utcnow
from scorer.release.store import tables as t
from scorer.release.store.rows import read

if TYPE_CHECKING:
    from scorer.release.audit import Audit
    from scorer.release.settings import ManagedCheckpoint, PlatformFile

HORIZON = timedelta(days=366)
"""Limit on how far ahead a booking may start."""
_LATE = timedelta(minutes=1)
"""Tolerance for a start in the past, because of clock skew and slow input."""


class Calendar:
    """Books slots of checkpoints and manages freezes.

    Args:
        store: The database.
        settings: The managed checkpoints.
        audit: The audit log.
        now: Returns the current time.
    """

    def __init__(
        self, store: Store, settings: PlatformFile, audit: Audit, *, now: Callable[[], datetime] = utcnow
    ) -> None:
        self._store = store
        self._settings = settings
        self._audit = audit
        self._now = now

    # --- queries ---

    def page(
        self, actor: Actor, start: datetime, end: datetime, *, checkpoint: str | None = None
    ) -> CalendarPage:
        """Return the slots, bookings and freeze windows between two times.

        Args:
            actor: The calling user.
            start: Start of the page.
            end: End of the page, at most a year after its start.
            checkpoint: Name of the checkpoint; None: all.
        """
        start, end = _aware(start, "start"), _aware(end, "end")
        if not start < end <= start + HORIZON:
            raise InvalidError("a page must start before it ends and span at most a year; correct its times")
        names = [checkpoint] if checkpoint else sorted(self._settings.checkpoints)
        slots = tuple(
            Slot(name, number) for name in names for number in range(1, self.checkpoint(name).slots + 1)
        )
        b = t.bookings.c
        with self._store.read() as connection:
            rows = connection.execute(
                select(t.bookings)
                .where(b.checkpoint.in_(names), b.start < end, b.end > start)
                .order_by(b.start, b.id)
            )
            booked = tuple(read(Booking, row) for row in rows)
            freezes = bookings.freezes(connection)
        windows = [
            window
            for freeze in freezes
            if any(frozen.concerns(freeze, name) for name in names)
            for window in frozen.windows(freeze, start, end)
        ]
        windows.sort(key=lambda window: (window.start, window.freeze.id))
        return CalendarPage(start, end, slots, booked, tuple(windows))

    def next_free(
        self, actor: Actor, checkpoint: str, length: timedelta, *, after: datetime | None = None
    ) -> Free:
        """Return the earliest slot that is free for a duration and does not start in a freeze.

        Args:
            actor: The calling user.
            checkpoint: Name of the checkpoint.
            length: Duration of the booking.
            after: Earliest start; None: now.

        Raises:
            ConflictError: There is no such slot within a year.
        """
        length = self._length(checkpoint, length)
        with self._store.read() as connection:
            return self._next_free(connection, checkpoint, length, after)

    def frozen(self, checkpoint: str, at: datetime | None = None) -> FreezeWindow | None:
        """Return the freeze window that forbids a change of the answers at a time; None: it is allowed."""
        with self._store.read() as connection:
            freezes = bookings.freezes(connection)
        return frozen.forbids(freezes, checkpoint, at or self._now())

    def freezes(self, actor: Actor) -> Sequence[Freeze]:
        """Return all freezes of the calendar."""
        with self._store.read() as connection:
            return bookings.freezes(connection)

    def checkpoint(self, name: str) -> ManagedCheckpoint:
        """Return the settings of a managed checkpoint. Raises NotFoundError."""
        try:
            return self._settings.checkpoints[name]
        except KeyError:
            known = ", ".join(sorted(self._settings.checkpoints))
            raise NotFoundError(f'there is no checkpoint "{name}"; use one of {known}') from None

    # --- bookings, inside the caller's transaction ---

    def book(
        self,
        connection: Connection,
        actor: Actor,
        change: ChangeRequest,
        *,
        start: datetime | None,
        length: timedelta,
        slot: int | None = None,
    ) -> Booking:
        """Book a slot for a change request, in the caller's transaction.

        Args:
            connection: Connection of the caller's transaction.
            actor: The user who books.
            change: The change request.
            start: Start of the booking; None: as early as possible.
            length: Duration of the booking.
            slot: Number of the slot, from 1; None: any.

        Raises:
            ConflictError: The slot is taken. The error names the next free slot.
            FrozenError: The start is in a freeze. The error names the next free slot.
            QuotaError: The project has no slot minutes left.
            InvalidError: The start, duration or slot is out of range.
        """
        checkpoint = change.checkpoint
        length = self._length(checkpoint, length)
        self._check_slot(checkpoint, slot)
        if start is None:
            free = self._next_free(connection, checkpoint, length, None, slot=slot)
            slot, start = free.slot, free.start
        else:
            start = self._start(start, Remedy("Take the next free slot", {"start": "", "slot": ""}))
            slot = self._free_slot(connection, checkpoint, start, length, slot, change.id)
        bookings.check_quota(connection, change.project, start, start + length, without=change.id)
        values = {
            "change": change.id,
            "project": change.project,
            "user": actor.user,
            "kind": change.kind,
            "checkpoint": checkpoint,
            "slot": slot,
            "start": start,
            "end": start + length,
            "active": True,
        }
        done = connection.execute(insert(t.bookings).values(**values).returning(t.bookings))
        return read(Booking, done.one())

    def move(
        self,
        connection: Connection,
        booking: Booking,
        *,
        start: datetime,
        length: timedelta,
        slot: int | None = None,
    ) -> Booking:
        """Move a booking in the caller's transaction. The rules and errors are those of `book`."""
        length = self._length(booking.checkpoint, length)
        self._check_slot(booking.checkpoint, slot)
        start = self._start(start)
        slot = self._free_slot(connection, booking.checkpoint, start, length, slot, booking.change)
        bookings.check_quota(connection, booking.project, start, start + length, without=booking.change)
        moved = {"start": start, "end": start + length, "slot": slot}
        done = connection.execute(
            update(t.bookings).where(t.bookings.c.id == booking.id).values(**moved).returning(t.bookings)
        )
        return read(Booking, done.one())

    def give_back(self, connection: Connection, change: str, *, at: datetime) -> None:
        """End the active booking of a change request at `at`, which frees the rest of its time span."""
        b = t.bookings.c
        for row in connection.execute(select(t.bookings).where(b.change == change, b.active)).all():
            end = min(row.end, max(row.start, at))
            connection.execute(update(t.bookings).where(b.id == row.id).values(active=False, end=end))

    def of(self, connection: Connection, change: str) -> Booking | None:
        """Return the newest booking of a change request, including a released one."""
        return bookings.of_change(connection, change)

    def freeze_before(self, connection: Connection, booking: Booking) -> FreezeWindow | None:
        """Return the freeze window that delayed a booking without a requested start; None: none did."""
        freezes = bookings.freezes(connection)
        for at in (self._now(), booking.start - timedelta(microseconds=1)):
            window = frozen.forbids(freezes, booking.checkpoint, at)
            if window and window.end <= booking.start:
                return window
        return None

    # --- freezes ---

    def add_freeze(self, actor: Actor, asked: NewFreeze) -> Freeze:
        """Add a freeze; for administrators only."""
        _admin(actor)
        if not asked.name.strip():
            raise InvalidError("a freeze must have a name; give one")
        try:
            check_line(asked.cron, asked.timezone)
        except ValueError as error:
            raise InvalidError(f"the freeze's times: {error}") from None
        values = {
            **asked.model_dump(),
            "name": asked.name.strip(),
            "cron": " ".join(asked.cron.split()),
            "created_by": actor.user,
        }
        with self._store.write() as connection:
            done = connection.execute(
                insert(t.freezes).values(**values, created_at=self._now()).returning(t.freezes)
            )
            made = read(Freeze, done.one())
            self._audit.append(connection, actor, "freeze.add", f"freeze {made.id}", details=values)
        return made

    def remove_freeze(self, actor: Actor, freeze: int) -> None:
        """Remove a freeze; for administrators only."""
        _admin(actor)
        with self._store.write() as connection:
            gone = connection.execute(
                delete(t.freezes).where(t.freezes.c.id == freeze).returning(t.freezes)
            ).first()
            if gone is None:
                raise NotFoundError(f"there is no freeze {freeze}; the calendar lists all freezes")
            details = {"name": gone.name, "kind": gone.kind, "cron": gone.cron}
            self._audit.append(connection, actor, "freeze.remove", f"freeze {freeze}", details=details)

    # --- helpers ---

    def _next_free(
        self,
        connection: Connection,
        checkpoint: str,
        length: timedelta,
        after: datetime | None,
        *,
        slot: int | None = None,
    ) -> Free:
        settings = self.checkpoint(checkpoint)
        now = self._now()
        earliest = max(now, _aware(after, "after")) if after else now
        busy: dict[int, list[tuple[datetime, datetime]]] = {
            number: [] for number in range(1, settings.slots + 1) if slot in (None, number)
        }
        for held in bookings.held(connection, checkpoint, earliest):
            if held.slot in busy:
                busy[held.slot].append((held.start, held.end))
        freezes = bookings.freezes(connection)

        def frozen_until(at: datetime) -> datetime | None:
            window = frozen.forbids(freezes, checkpoint, at)
            return window.end if window else None

        place = next_free(busy, length, earliest, now + HORIZON, frozen_until)
        if place is None:
            raise ConflictError(
                f'checkpoint "{checkpoint}" has no slot free for {_minutes(length)} within a year; '
                "book less, or ask an admin to remove a freeze or add slots"
            )
        number, start = place
        return Free(checkpoint, number, start, start + length)

    def _free_slot(
        self,
        connection: Connection,
        checkpoint: str,
        start: datetime,
        length: timedelta,
        slot: int | None,
        change: str,
    ) -> int:
        """Return a slot that is free then. Raises ConflictError or FrozenError with the next free slot."""
        window = frozen.forbids(bookings.freezes(connection), checkpoint, start)
        if window:
            reason = f" ({window.freeze.reason})" if window.freeze.reason else ""
            frozen_until = (
                f'checkpoint "{checkpoint}" is frozen at {moment(start)} by "{window.freeze.name}"{reason} '
                f"until {moment(window.end)}"
            )
            raise self._rejected(FrozenError, frozen_until, connection, checkpoint, length, start)
        end = start + length
        clashes = {
            held.slot: held
            for held in bookings.held(connection, checkpoint, start)
            if held.start < end and held.change != change
        }
        numbers = [slot] if slot else range(1, self.checkpoint(checkpoint).slots + 1)
        free = [number for number in numbers if number not in clashes]
        if free:
            return free[0]
        held = clashes[numbers[0]]
        what = f"slot {slot}" if slot else "every slot"
        taken = (
            f'{what} of checkpoint "{checkpoint}" is booked at that time (by {held.change}, '
            f"{moment(held.start)} to {moment(held.end)})"
        )
        raise self._rejected(ConflictError, taken, connection, checkpoint, length, start)

    def _rejected(
        self,
        kind: type[PlatformError],
        why: str,
        connection: Connection,
        checkpoint: str,
        length: timedelta,
        after: datetime,
    ) -> PlatformError:
        """Return an error that names the next free slot."""
        try:
            free = self._next_free(connection, checkpoint, length, after)
        except ConflictError:
            return kind(f"{why}; no slot is free within a year: book less")
        error = kind(f"{why}; next free: slot {free.slot} from {moment(free.start)} to {moment(free.end)}")
        error.remedy = Remedy(
            f"Take slot {free.slot}, {free.start:%a %d %b %H:%M} to {free.end:%H:%M} UTC",
            {"start": free.start.isoformat(), "slot": str(free.slot)},
        )
        return error

    def _length(self, checkpoint: str, length: timedelta) -> timedelta:
        longest = timedelta(minutes=self.checkpoint(checkpoint).max_minutes)
        if not timedelta() < length <= longest:
            raise InvalidError(
                f'a booking at checkpoint "{checkpoint}" must last more than 0 and at most '
                f"{_minutes(longest)}, not {_minutes(length)}; give another duration"
            )
        return length

    def _check_slot(self, checkpoint: str, slot: int | None) -> None:
        slots = self.checkpoint(checkpoint).slots
        if slot is not None and not 1 <= slot <= slots:
            raise InvalidError(
                f'checkpoint "{checkpoint}" has slots 1 to {slots}, not {slot}; use one of them'
            )

    def _start(self, start: datetime, remedy: Remedy | None = None) -> datetime:
        """Check a requested start. A booking that is moved has no remedy: it needs a start."""
        start, now = _aware(start, "start"), self._now()
        if start < now - _LATE:
            otherwise = ", or none for the next free slot" if remedy else ""
            error = InvalidError(
                f"a booking cannot start in the past ({moment(start)}; it is now {moment(now)}); "
                f"give a later start{otherwise}"
            )
            error.remedy = remedy
            raise error
        if start > now + HORIZON:
            raise InvalidError(
                f"a booking must start within a year, not at {moment(start)}; give an earlier start"
            )
        return max(start, now)


def moment(at: datetime) -> str:
    """Return a time as text, to the minute."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _minutes(length: timedelta) -> str:
    return f"{length / timedelta(minutes=1):g} minutes"


def _aware(at: datetime, what: str) -> datetime:
    if at.tzinfo is None:
        raise InvalidError(f"{what} has no time zone; write 2026-11-21T17:00:00Z")
    return at.astimezone(UTC)


def _admin(actor: Actor) -> None:
    if not actor.admin:
        raise NotAllowedError(f"only an admin manages freezes, and {actor.user} is not one; ask an admin")
