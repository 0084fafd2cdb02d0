"""Durations of feature sets: whole seconds, or text such as "7d"."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from scorer.durations import UNITS, parse_duration


def seconds(given: Any) -> int:
    """Return a duration in seconds.

    Args:
        given: Text such as "90s", "15m", "6h" or "7d", or a whole number of seconds.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    is_whole = isinstance(given, str) and given[:-1].isdecimal() and given[-1] in UNITS
    found = parse_duration(given) if is_whole else None
    if found is None:
        raise ValueError('a duration is a whole number with s, m, h or d, such as "7d"')
    return int(found)


Seconds = Annotated[int, BeforeValidator(seconds)]
