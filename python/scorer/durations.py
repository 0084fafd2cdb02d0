"""Durations in declarations: a number with a unit, such as "7d"."""

from __future__ import annotations

import re
from typing import Final

UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
"""Seconds of each unit."""
_FORM = re.compile(r"(?P<number>\d{1,10}(?:\.\d{1,10})?)\s*(?P<unit>s|m|h|d)?")


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration such as "90s", "1.5h" or, without a unit, "90"; None if it is none."""
    found = _FORM.fullmatch(text)
    return None if found is None else float(found["number"]) * UNITS[found["unit"] or "s"]


def shortest_duration(seconds: int) -> str:
    """Return the shortest text of a whole number of seconds, such as "7d"."""
    unit = next(unit for unit in ("d", "h", "m", "s") if seconds % UNITS[unit] == 0)
    return f"{seconds // UNITS[unit]}{unit}"
