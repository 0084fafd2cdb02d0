"""An interval: two bounds that unpack like a pair."""

from __future__ import annotations

from typing import NamedTuple


class Interval(NamedTuple):
    """Lower and upper bound of a quantity; infinite on a side where nothing is known."""

    low: float
    high: float
