"""The process of an analysis of adoption: `python -m scorer.release.adoption.child FOLDER`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the job of a folder and write its result; see `run_child`."""
    from scorer.release.children import run_child

    return run_child(arguments, _work)


def _work(folder: Path) -> None:
    from scorer.causal.analysis import delta_cv
    from scorer.causal.settings import load
    from scorer.learn.errors import DataError
    from scorer.release.adoption import job
    from scorer.release.children import reporter

    wanted = job.read_job(folder)
    if wanted is None:
        raise DataError(f"{folder} holds no {job.JOB}")
    advance = reporter(lambda step, share: job.write_progress(folder, job.AdoptionProgress(step, share)))
    delta_cv(Path(wanted.data), load(Path(wanted.task)), advance=advance).write(folder / job.RESULT)


if __name__ == "__main__":
    sys.exit(main())
