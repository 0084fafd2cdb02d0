"""The process of a backtest: `python -m scorer.release.backtest.child FOLDER`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the job of a folder and write its result; see `run_child`."""
    from scorer.release.children import run_child

    return run_child(arguments, _work)


def _work(folder: Path) -> None:
    from scorer.release.backtest import job, judge

    result = judge.run(job.read_job(folder), lambda progress: job.write_progress(folder, progress))
    job.write_result(folder, result)


if __name__ == "__main__":
    sys.exit(main())
