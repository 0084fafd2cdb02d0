"""Timing in turns: whoever is measured meets the same moments of the machine."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Call = Callable[[], object]


@dataclass(frozen=True)
class Lap:
    """What one racer needed per call, in seconds."""

    best: float
    median: float


def race(
    calls: Mapping[str, Sequence[Call]],
    *,
    seconds: float = 3.0,
    least_rounds: int = 5,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, Lap]:
    """Times each racer's calls, one by one, in rounds.

    In each round every racer makes all of its calls, and makes some of them untimed before, to have its own
    code and data in the caches again. Of each call the shortest time counts: the one that nobody else on the
    machine disturbed. A mean over the calls then compares work with work.

    Args:
        calls: Per racer, the calls of one round.
        seconds: How long in all.
        least_rounds: Even where this takes longer than `seconds`.
        clock: Nanoseconds; `time.process_time_ns` for calls longer than a turn on a shared processor.

    Returns:
        Seconds per call, by racer.
    """
    times: dict[str, list[list[int]]] = {name: [] for name in calls}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        end = time.perf_counter() + seconds
        rounds = 0
        while rounds < least_rounds or time.perf_counter() < end:
            for name, each in calls.items():
                for call in each[: len(each) // 8]:
                    call()
                times[name].append([_timed(call, clock) for call in each])
            rounds += 1
    finally:
        if collecting:
            gc.enable()
    return {name: _lap(rounds) for name, rounds in times.items()}


def _timed(call: Call, clock: Callable[[], int]) -> int:
    started = clock()
    call()
    return clock() - started


def _lap(rounds: list[list[int]]) -> Lap:
    columns = [sorted(column) for column in zip(*rounds, strict=True)]
    best = sum(column[0] for column in columns) / len(columns)
    median = sum(column[len(column) // 2] for column in columns) / len(columns)
    return Lap(best / 1e9, median / 1e9)
