"""The process of a comparison over time: `python -m scorer.release.weekly.child FOLDER`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the job of a folder and write its result; see `run_child`."""
    from scorer.release.children import run_child

    return run_child(arguments, _work)


def _work(folder: Path) -> None:
    from scorer.learn.comparison.running import compare_versions
    from scorer.learn.errors import DataError
    from scorer.log import BundleShelf
    from scorer.log.source.locations import TableAccess, source_at
    from scorer.release.children import reporter
    from scorer.release.weekly import job

    wanted = job.read_job(folder)
    if wanted is None:
        raise DataError(f"{folder} holds no {job.JOB}")
    advance = reporter(lambda step, share: job.write_progress(folder, job.WeeklyProgress(step, share)))
    source = source_at(wanted.logs, TableAccess.of(os.environ))
    shelf = BundleShelf([Path(one) for one in wanted.bundles])
    found = compare_versions(source, shelf, wanted.comparison, advance=advance)
    found.write(folder / job.RESULT)


if __name__ == "__main__":
    sys.exit(main())
