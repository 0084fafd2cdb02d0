"""The highest rate at which an SLA is met, by doubling and then bisection."""

from __future__ import annotations

from collections.abc import Callable


def find_rate(
    holds: Callable[[float], bool], start: float, *, precision: float = 0.05, most_runs: int = 14
) -> float | None:
    """Return the highest rate at which the SLA is met, within `precision`.

    Args:
        holds: Runs a load test at a rate in requests per second, and returns whether the SLA was met.
        start: First rate in requests per second.
        precision: The search ends when the lowest rate that violated the SLA exceeds the highest rate that
            met it by at most this share.
        most_runs: Largest number of runs.

    Returns:
        The rate in requests per second; None if the SLA is violated even at `start` / 64.
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
