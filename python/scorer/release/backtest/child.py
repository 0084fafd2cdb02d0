"""The process of a backtest: `python -m scorer.release.backtest.child FOLDER`.

It runs with low priority and ends when the platform ends (`scorer.release.children`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

_NICE = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the job of a folder and write its result.

    Returns:
        0 if there is a result; 1 if the job failed, with the reason in one line on stderr.
    """
    from scorer.errors import ScorerError
    from scorer.release import children
    from scorer.release.backtest import job, judge

    folder = Path((sys.argv[1:] if arguments is None else arguments)[0])
    if arguments is None:
        children.end_with_the_platform()
        os.nice(_NICE)
    try:
        result = judge.run(job.read_job(folder), lambda progress: job.write_progress(folder, progress))
    except (ScorerError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    job.write_result(folder, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
