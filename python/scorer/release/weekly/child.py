"""The process of a comparison over time: `python -m scorer.release.weekly.child FOLDER`.

It runs with low priority and ends when the platform ends (`scorer.release.children`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_NICE: Final = 10
_EVERY: Final = 0.5
"""Interval of progress reports in seconds."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the job of a folder and write its result.

    Returns:
        0 if there is a result; 1 if the job failed, with the reason in one line on stderr.
    """
    from scorer.errors import ScorerError
    from scorer.learn.comparison.running import compare_versions
    from scorer.log import BundleShelf
    from scorer.log.source.locations import TableAccess, source_at
    from scorer.release import children
    from scorer.release.weekly import job

    folder = Path((sys.argv[1:] if arguments is None else arguments)[0])
    if arguments is None:
        children.end_with_the_platform()
        os.nice(_NICE)
    wanted = job.read_job(folder)
    if wanted is None:
        sys.stderr.write(f"{folder} holds no {job.JOB}\n")
        return 1
    reported = [0.0]

    def advance(step: str, share: float) -> None:
        if (now := time.monotonic()) - reported[0] >= _EVERY:
            reported[0] = now
            job.write_progress(folder, job.WeeklyProgress(step, share))

    try:
        source = source_at(wanted.logs, TableAccess.of(os.environ))
        shelf = BundleShelf([Path(one) for one in wanted.bundles])
        found = compare_versions(source, shelf, wanted.comparison, advance=advance)
        found.write(folder / job.RESULT)
    except (ScorerError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
