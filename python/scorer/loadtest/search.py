"""The highest rate at which a promise holds, by doubling and then bisection."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["find_rate"]


def find_rate(
    holds: Callable[[float], bool], start: float, *, precision: float = 0.05, most_runs: int = 14
) -> float | None:
    """The highest rate found to hold, within `precision`; None if even a 64th of the start does not.

    Args:
        holds: Runs at a rate and says whether the promise held.
        start: Where to begin.
        precision: Relative distance at which to stop.
        most_runs: Never run more often than this.
    """
    good, bad = 0.0, float("inf")
    rate = start
    for _ in range(most_runs):
        if holds(rate):
            good = rate
        else:
            bad = rate
        if good == 0.0:
            rate = bad / 2
            if rate < start / 64:
                return None
        elif bad == float("inf"):
            rate = good * 2
        elif bad - good <= precision * good:
            break
        else:
            rate = (good + bad) / 2
    return good or None
