"""The highest rate at which an SLA is met, by doubling and then bisection."""

from __future__ import annotations

from collections.abc import Callable


def find_rate(
    holds: Callable[[float], bool], start: float, *, precision: float = 0.05, most_runs: int = 14
) -> float | None:
    """Return the highest rate at which the SLA is met, within `precision`.

    Args:
        holds: Runs at a rate, in requests per second, and returns whether the SLA was met.
        start: First rate, in requests per second.
        precision: Relative distance between met and violated at which the search ends.
        most_runs: Limit of runs.

    Returns:
        Requests per second; None where the SLA is violated even at a 64th of `start`.
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
