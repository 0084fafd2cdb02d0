"""Durations in declarations: a whole number with a unit, such as "7d"."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_FORM = re.compile(r"(\d{1,10})(s|m|h|d)")


def seconds(given: Any) -> int:
    """Return a duration in seconds.

    Args:
        given: Text such as "90s", "15m", "6h" or "7d", or a whole number of seconds.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    match = _FORM.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        raise ValueError('a duration is a whole number with s, m, h or d, such as "7d"')
    return int(match[1]) * _UNITS[match[2]]


def duration(length: int) -> str:
    """Return the shortest text of a duration in seconds."""
    unit = next(unit for unit in ("d", "h", "m", "s") if length % _UNITS[unit] == 0)
    return f"{length // _UNITS[unit]}{unit}"


Seconds = Annotated[int, BeforeValidator(seconds)]
