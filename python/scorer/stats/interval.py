"""The type of an interval."""

from __future__ import annotations

from typing import NamedTuple


class Interval(NamedTuple):
    """Lower and upper bound of a quantity. A bound that is not known is infinite."""

    low: float
    high: float
