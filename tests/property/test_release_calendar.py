"""The calendar against a reference that looks at every minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from crontab import MINUTE, ZONES, hours_field, minutes_field, naive_begins, weekday_field
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.release.calendar import frozen
from scorer.release.calendar.free import next_free
from scorer.release.model import Freeze

# --- freezes ---


def freeze(number: int, kind: str, line: str, minutes: int, zone: str, patterns: tuple[str, ...]) -> Freeze:
    return Freeze(number, f"f{number}", kind, line, zone, minutes, patterns)


freezes_strategy = st.lists(
    st.builds(
        freeze,
        st.integers(1, 9),
        st.sampled_from(["deny", "allow"]),
        st.builds(lambda m, h, d: f"{m} {h} * * {d}", minutes_field, hours_field, weekday_field),
        st.sampled_from([1, 20, 60, 61, 240, 1500]),
        st.sampled_from(ZONES),
        st.sampled_from([("*",), ("fraud.*",), ("action.*", "fraud.checkout"), ("other",)]),
    ),
    max_size=4,
)


def naive_frozen(freezes: list[Freeze], begins: dict[int, set[datetime]], at: datetime) -> bool:
    """A reference. Deny has precedence, and with an allow, all times outside of its windows are frozen.

    Only freezes whose patterns match fraud.checkout are used.
    """
    mine = [
        (place, each)
        for place, each in enumerate(freezes)
        if set(each.checkpoints) & {"*", "fraud.*", "fraud.checkout"}
    ]
    is_open = {
        place: any(begin <= at < begin + each.minutes * MINUTE for begin in begins[place])
        for place, each in mine
    }
    if any(is_open[place] for place, each in mine if each.kind == "deny"):
        return True
    allows = [place for place, each in mine if each.kind == "allow"]
    return bool(allows) and not any(is_open[place] for place in allows)


@settings(max_examples=40, deadline=None)
@given(
    freezes_strategy,
    st.sampled_from([datetime(2026, 3, 28, 20, tzinfo=UTC), datetime(2026, 8, 7, tzinfo=UTC)]),
)
def test_a_time_is_frozen_as_in_a_check_of_every_minute(freezes: list[Freeze], start: datetime) -> None:
    end = start + timedelta(hours=30)
    begins = {
        place: naive_begins(each.cron, each.timezone, start - each.minutes * MINUTE, end)
        for place, each in enumerate(freezes)
    }
    for step in range(0, 30 * 60, 13):
        at = start + step * MINUTE
        window = frozen.forbids(freezes, "fraud.checkout", at)
        assert (window is not None) == naive_frozen(freezes, begins, at), at
        if window:
            assert window.start <= at < window.end


def test_overlapping_windows_are_merged() -> None:
    start = datetime(2026, 5, 4, tzinfo=UTC)
    hourly = freeze(1, "deny", "0 * * * *", 90, "UTC", ("*",))
    (window,) = frozen.windows(hourly, start, start + timedelta(hours=3))
    assert (window.start, window.end) == (start - timedelta(hours=1), start + timedelta(hours=3, minutes=30))


# --- the next free slot ---


@st.composite
def shadow(draw: st.DrawFn) -> tuple[dict[int, list[tuple[int, int]]], int, int, list[tuple[int, int]]]:
    """Generate busy spans of one to three slots, a length, a start, and frozen spans, in minutes."""
    busy = {}
    for slot in range(1, draw(st.integers(1, 3)) + 1):
        spans, at = [], 0
        for _ in range(draw(st.integers(0, 6))):
            at += draw(st.integers(0, 40))
            length = draw(st.integers(1, 60))
            spans.append((at, at + length))
            at += length
        busy[slot] = spans
    frozen_spans = draw(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 50)), max_size=4))
    return (
        busy,
        draw(st.integers(1, 50)),
        draw(st.integers(0, 200)),
        [(start, start + length) for start, length in frozen_spans],
    )


@settings(max_examples=300, deadline=None)
@given(shadow())
def test_the_next_free_slot_equals_that_of_a_check_of_every_minute(
    case: tuple[dict[int, list[tuple[int, int]]], int, int, list[tuple[int, int]]],
) -> None:
    busy, length, after, frozen_spans = case
    zero = datetime(2026, 1, 1, tzinfo=UTC)

    def naive() -> tuple[int, int] | None:
        for at in range(after, 701):
            if any(start <= at < end for start, end in frozen_spans):
                continue
            for slot, spans in busy.items():
                if all(end <= at or start >= at + length for start, end in spans):
                    return slot, at
        return None

    def frozen_until(at: datetime) -> datetime | None:
        ends = [end for start, end in frozen_spans if zero + start * MINUTE <= at < zero + end * MINUTE]
        return zero + max(ends) * MINUTE if ends else None

    result = next_free(
        {slot: [(zero + s * MINUTE, zero + e * MINUTE) for s, e in spans] for slot, spans in busy.items()},
        length * MINUTE,
        zero + after * MINUTE,
        zero + 700 * MINUTE,
        frozen_until,
    )
    expected = naive()
    assert result == (None if expected is None else (expected[0], zero + expected[1] * MINUTE))


def test_a_year_of_bookings_is_searched_in_one_pass() -> None:
    """Every span is read once, because the frozen hours between them do not restart the search."""
    zero = datetime(2026, 1, 1, tzinfo=UTC)
    looked = 0

    class Spans(list[tuple[datetime, datetime]]):
        def __getitem__(self, place):  # type: ignore[no-untyped-def]
            nonlocal looked
            looked += 1
            return super().__getitem__(place)

    hour = timedelta(hours=1)
    year = 365 * 24
    slots = {n: Spans((zero + h * hour, zero + (h + 1) * hour) for h in range(year)) for n in (1, 2, 3)}
    slot = next_free(
        slots,
        hour,
        zero,
        zero + 2 * year * hour,
        lambda at: at + hour if at.hour % 2 and at < zero + 9 * hour else None,
    )
    assert slot == (1, zero + year * hour)
    assert looked <= 3 * 2 * (year + 2)


def test_the_search_within_a_freeze_without_end_is_bounded() -> None:
    """The freeze repeats an hour every minute.

    The search detects after a bounded number of steps that it never ends.
    """
    begin = datetime(2026, 3, 1, tzinfo=UTC)
    looks = 0

    def frozen_until(at: datetime) -> datetime:
        nonlocal looks
        looks += 1
        return at + timedelta(minutes=1)

    slot = next_free({1: []}, timedelta(minutes=1), begin, begin + timedelta(days=366), frozen_until)
    assert slot is None and looks < 1000
