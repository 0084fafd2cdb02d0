"""Alerts: k of m looks, and one alert for all that shifts within a cool-down."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from scorer.stats.arrays import Bools, Ints


def tripped(shifted: Bools, k: int, m: int) -> Bools:
    """Return whether at least k of the last m looks are shifted, `[T, F]`.

    Args:
        shifted: `[T, F]` consecutive looks; those before the first are not shifted.
        k: Number of shifted looks.
        m: Number of looks.
    """
    sums = np.concatenate([np.zeros((1, shifted.shape[1]), np.int64), np.cumsum(shifted, axis=0)])
    ends = np.arange(1, len(shifted) + 1)
    return np.asarray(sums[ends] - sums[np.maximum(ends - m, 0)] >= k)


@dataclass(frozen=True)
class OpenAlert:
    """An alert that gathers what shifts.

    Attributes:
        opened: Hour of the look that opened it.
        last: Hour of the last look at which a quantity of it was shifted.
        quantities: Hour at which each quantity was added.
    """

    opened: int
    last: int
    quantities: dict[str, int]


def advance(
    alert: OpenAlert | None, hour: int, shifted: frozenset[str], *, cool_down: int
) -> tuple[OpenAlert | None, bool]:
    """Return the alert after a look, and whether it is a new one.

    What is still shifted keeps its alert open and is not reported again. A quantity that shifts later joins
    the alert within the cool-down after its opening, and opens another one afterwards.

    Args:
        alert: The latest alert; None: there was none.
        hour: Hour of the look.
        shifted: Quantities with k of m shifted looks.
        cool_down: Hours of the cool-down.
    """
    if not shifted:
        return alert, False
    if alert is None or (hour - alert.opened >= cool_down and hour - alert.last >= cool_down):
        return OpenAlert(hour, hour, dict.fromkeys(sorted(shifted), hour)), True
    fresh = sorted(shifted - alert.quantities.keys())
    if fresh and hour - alert.opened >= cool_down:
        kept = {name: at for name, at in alert.quantities.items() if name in shifted}
        return OpenAlert(hour, hour, kept | dict.fromkeys(fresh, hour)), True
    return replace(alert, last=hour, quantities=alert.quantities | dict.fromkeys(fresh, hour)), False


def alert_hours(hours: Ints, trips: Bools, names: list[str], cool_down: int) -> list[OpenAlert]:
    """Return the alerts of consecutive looks, as they are after the last one.

    Args:
        hours: `[T]` hour of each look.
        trips: `[T, F]` of `tripped`.
        names: Name of each quantity, `F`.
        cool_down: Hours of the cool-down.
    """
    found: list[OpenAlert] = []
    for place in np.flatnonzero(trips.any(axis=1)).tolist():
        shifted = frozenset(names[at] for at in np.flatnonzero(trips[place]).tolist())
        alert, is_new = advance(found[-1] if found else None, int(hours[place]), shifted, cool_down=cool_down)
        if alert is None:
            continue
        if is_new:
            found.append(alert)
        else:
            found[-1] = alert
    return found
