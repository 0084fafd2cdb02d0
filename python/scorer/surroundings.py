"""What changes on the machine while a server runs: steps of the wall clock, and the number of processors."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scorer.events import EventLog

_STEP_SECONDS = 1.0


def _offset() -> float:
    """Seconds that the wall clock is ahead of the monotonic clock, which no step changes."""
    return time.time() - time.monotonic()


@dataclass
class Surroundings:
    """Compares the machine with what it was at the last look, and reports what changed.

    Deadlines, latencies and rates use the monotonic clock, so a step of the wall clock changes the times in
    records and nothing else; an operator who reads those records should know of it.

    Attributes:
        threads: Threads that answer requests.
        events: Where changes are reported.
    """

    threads: int
    events: EventLog
    _clock: float = field(default_factory=_offset)
    _short: bool = False

    def look(self) -> None:
        """Report what changed since the last look."""
        clock = _offset()
        if abs(clock - self._clock) >= _STEP_SECONDS:
            self.events.warning("clock_stepped", seconds=round(clock - self._clock, 3))
            self._clock = clock
        cpus = len(os.sched_getaffinity(0))
        short = cpus < self.threads
        if short and not self._short:
            self.events.warning(
                "too_few_cpus",
                threads=self.threads,
                cpus=cpus,
                remedy="set threads to the processors that the container has, or give it more",
            )
        elif self._short and not short:
            self.events.info("enough_cpus", threads=self.threads, cpus=cpus)
        self._short = short
