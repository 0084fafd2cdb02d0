"""Crontab lines against a reference that looks at every minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from crontab import ZONES, hours_field, minutes_field, naive_begins, weekday_field
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.cron import check, latest, occurrences


@settings(max_examples=60, deadline=None)
@given(
    minutes_field,
    hours_field,
    weekday_field,
    st.sampled_from(ZONES),
    st.sampled_from(
        [
            datetime(2026, 3, 28, tzinfo=UTC),
            datetime(2026, 10, 24, tzinfo=UTC),
            datetime(2026, 7, 1, tzinfo=UTC),
        ]
    ),
)
def test_windows_start_at_the_wall_clock_time(
    minute: str, hour: str, weekday: str, zone: str, start: datetime
) -> None:
    line, end = f"{minute} {hour} * * {weekday}", start + timedelta(days=3)
    result = set()
    for moment in occurrences(line, zone, start):
        if moment >= end:
            break
        result.add(moment)
    assert result == naive_begins(line, zone, start, end)


def test_days_and_months_are_those_of_the_wall_clock() -> None:
    berlin = occurrences("0 0 1 1,7 *", "Europe/Berlin", datetime(2026, 1, 1, tzinfo=UTC))
    assert [next(berlin), next(berlin)] == [
        datetime(2026, 6, 30, 22, tzinfo=UTC),
        datetime(2026, 12, 31, 23, tzinfo=UTC),
    ]


def test_summer_time_moves_times_that_do_not_exist_and_repeats_those_that_occur_twice() -> None:
    def on(day: datetime) -> list[datetime]:
        return [m for m, _ in zip(occurrences("30 2 * * *", "Europe/Berlin", day), range(2), strict=False)]

    assert on(datetime(2026, 3, 29, tzinfo=UTC)) == [
        datetime(2026, 3, 29, 1, 30, tzinfo=UTC),  # 03:30, because 02:30 does not exist
        datetime(2026, 3, 30, 0, 30, tzinfo=UTC),
    ]
    assert on(datetime(2026, 10, 25, tzinfo=UTC)) == [
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
        datetime(2026, 10, 25, 1, 30, tzinfo=UTC),
    ]


def test_all_times_of_a_repeated_hour_are_returned_in_order() -> None:
    result = occurrences("15,45 2 * * *", "Europe/Berlin", datetime(2026, 10, 25, tzinfo=UTC))
    assert [next(result).strftime("%H:%M") for _ in range(4)] == ["00:15", "00:45", "01:15", "01:45"]


@pytest.mark.parametrize("weekday", ["0", "7", "sun", "SUN", "7-7", "0-0"])
def test_0_and_7_are_sunday(weekday: str) -> None:
    assert next(occurrences(f"0 3 * * {weekday}", "UTC", datetime(2026, 10, 23, tzinfo=UTC))) == datetime(
        2026, 10, 25, 3, tzinfo=UTC
    )


def test_5_is_friday_and_a_nth_weekday_may_be_named() -> None:
    october = datetime(2026, 10, 1, tzinfo=UTC)
    assert next(occurrences("0 3 * * 5", "UTC", october)) == datetime(2026, 10, 2, 3, tzinfo=UTC)
    assert next(occurrences("0 3 * * fri#3", "UTC", october)) == datetime(2026, 10, 16, 3, tzinfo=UTC)
    assert next(occurrences("0 3 last * *", "UTC", october)) == datetime(2026, 10, 31, 3, tzinfo=UTC)


def test_the_latest_time_within_a_period_is_found() -> None:
    at = datetime(2026, 10, 25, 1, 40, tzinfo=UTC)

    def last(length: timedelta) -> datetime | None:
        return latest("30 2 * * *", "Europe/Berlin", at, length)

    assert last(timedelta(minutes=10)) is None
    assert last(timedelta(minutes=11)) == datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    assert last(timedelta(days=30)) == datetime(2026, 10, 25, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("line", "zone", "names"),
    [
        ("0 17 * *", "UTC", "five"),
        ("0 0 17 * * *", "UTC", "five"),
        ("0 17 * * someday", "UTC", "day-of-week"),
        ("0 17 * * 8", "UTC", "day-of-week"),
        ("61 * * * *", "UTC", "minute"),
        ("0 0 31 2 *", "UTC", "never"),
        ("0 0 1 * mon", "UTC", "two lines"),
        ("0 17 * * fri", "Europe/Atlantis", "Atlantis"),
        ("0 17 * * fri", "../../etc/passwd", "time zone"),
        ("0 0 * * */0", "UTC", "day-of-week"),
        ("0 0 * * fri-mon/0", "UTC", "day-of-week"),
    ],
)
def test_invalid_lines_are_refused(line: str, zone: str, names: str) -> None:
    for refuse in (check, lambda *bad: occurrences(*bad, datetime(2026, 1, 1, tzinfo=UTC))):
        with pytest.raises(ValueError, match=names):
            refuse(line, zone)
