"""Faults of workers and drivers, which the programs for Spark and Ray wrap around the function for a part."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from scorer.batch.cluster import PartResult
from scorer.batch.plans import PlannedPart
from scorer.batch.scoring import BatchScorer

ScorePart = Callable[[PlannedPart], PartResult]
_ROWS = 190
"""Rows of a file after which a worker dies. A batch has 64 rows, so some have been written."""


def dies_once(marker: Path, number: int, score: ScorePart, part: PlannedPart) -> PartResult:
    """Kill this worker in the middle of a part, at the first attempt."""
    if part.number == number and not marker.exists():
        marker.touch()
        original = BatchScorer.score

        def score_until_death(self: BatchScorer, batch: object, first_row: int = 0) -> object:
            if first_row > _ROWS:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, batch, first_row)

        BatchScorer.score = score_until_death
    return score(part)


def kills_driver(driver: int, number: int, score: ScorePart, part: PlannedPart) -> PartResult:
    """Kill the driver when a worker starts a part."""
    if part.number == number:
        os.kill(driver, signal.SIGKILL)
    return score(part)


def names_worker(directory: Path, score: ScorePart, part: PlannedPart) -> PartResult:
    """Write down how many bundles this worker has loaded after a part."""
    from scorer.batch.workers import worker_scorer

    result = score(part)
    about = worker_scorer.cache_info()
    (directory / f"{os.getpid()}-{part.number}").write_text(f"{about.misses} {about.hits + about.misses}")
    return result
