"""Windows of time that metrics are shown for, and the step that they are divided by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

from scorer.release.errors import InvalidError
from scorer.release.store import micros
from scorer.release.timeseries.expiry import HOUR, HOURS_KEPT, MINUTE, MINUTES_KEPT

WINDOWS: Final[Mapping[str, timedelta]] = MappingProxyType(
    {
        "1h": timedelta(hours=1),
        "6h": timedelta(hours=6),
        "24h": timedelta(hours=24),
        "7d": timedelta(days=7),
        "30d": timedelta(days=30),
        "6mo": timedelta(days=183),
    }
)
DEFAULT: Final = "24h"
MOST_POINTS: Final = 190
"""Points of a line."""
_STEPS: Final = (60, 300, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
_EARLIEST: Final = 1_000_000_000


@dataclass(frozen=True)
class MetricsWindow:
    """A window that is divided into equal steps, in microseconds since the Unix epoch.

    Attributes:
        start: Start of the first step, a multiple of the step.
        end: End of the window.
        step: Length of a step.
        cell: Length of the cells that are read, a minute or an hour.
        name: Name of the window; empty for a start and an end of one's own.
    """

    start: int
    end: int
    step: int
    cell: int
    name: str = ""

    @property
    def points(self) -> int:
        """Number of steps, the last of which may be shorter."""
        return -(-(self.end - self.start) // self.step)

    def starts(self) -> list[int]:
        """Return the start of each step."""
        return [self.start + at * self.step for at in range(self.points)]


def window_of(name: str | None, start: datetime | None, end: datetime | None, now: datetime) -> MetricsWindow:
    """Return a window by its name, or by a start and an end.

    Args:
        name: One of `WINDOWS`; None: `DEFAULT`.
        start: Start of the window, which takes precedence over the name.
        end: End of the window; None: now.
        now: The current time.

    Raises:
        InvalidError: There is no such window, or it is empty, too long, or in the future.
    """
    if start is None:
        if end is not None:
            raise InvalidError(f"the window ends at {end} and has no start; give a start too")
        name = name or DEFAULT
        if name not in WINDOWS:
            raise InvalidError(f'there is no window "{name[:40]}"; give one of {", ".join(WINDOWS)}')
        return _divided(now - WINDOWS[name], now, now, name)
    end = end or now
    if start >= now:
        raise InvalidError(f"the window starts at {start}, which is in the future; give an earlier start")
    if start >= end:
        raise InvalidError(f"the window ends at {end} and starts at {start}; give a later end")
    longest = timedelta(microseconds=HOURS_KEPT)
    if end - start > longest or start.timestamp() < _EARLIEST:
        raise InvalidError(
            f"the window starts at {start} and ends at {end}; metrics are kept for {longest.days} days, "
            "give a shorter window"
        )
    return _divided(start, min(end, now), now, "")


def _divided(start: datetime, end: datetime, now: datetime, name: str) -> MetricsWindow:
    first, last = micros(start), micros(end)
    has_minutes = first >= micros(now) - MINUTES_KEPT
    for seconds in _STEPS:
        step = seconds * 1_000_000
        if step < HOUR and not has_minutes:
            continue
        begin = first // step * step
        if last - begin <= MOST_POINTS * step:
            break
    return MetricsWindow(begin, last, step, MINUTE if step < HOUR else HOUR, name)
