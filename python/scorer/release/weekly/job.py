"""The files that the platform and the process of a comparison exchange: job, progress and result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scorer.durable import write_atomically
from scorer.learn.comparison.results import VersionComparison, read_comparison
from scorer.learn.comparison.running import ComparisonJob
from scorer.learn.errors import DataError
from scorer.release import children

JOB: Final = "job.json"
PROGRESS: Final = "progress.json"
RESULT: Final = "result.json"
ERROR: Final = "failed.txt"


@dataclass(frozen=True, slots=True)
class WeeklyJob:
    """One comparison.

    Attributes:
        comparison: What is compared.
        logs: Locations of the decision logs.
        bundles: Directories of the versions, and of further bundles whose decisions the logs may contain.
    """

    comparison: ComparisonJob
    logs: tuple[str, ...]
    bundles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WeeklyProgress:
    """Progress of a running comparison."""

    step: str = ""
    share: float = 0.0
    """Share of the step that is done."""


def write_job(folder: Path, job: WeeklyJob) -> None:
    """Write the file of a job."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"comparison": job.comparison.document(), "logs": job.logs, "bundles": job.bundles}
    write_atomically(folder / JOB, json.dumps(content).encode())


def read_job(folder: Path) -> WeeklyJob | None:
    """Read a job; None if there is none."""
    try:
        found: Mapping[str, Any] = json.loads((folder / JOB).read_bytes())
    except FileNotFoundError:
        return None
    logs: Sequence[str] = found["logs"]
    return WeeklyJob(ComparisonJob.restored(found["comparison"]), tuple(logs), tuple(found["bundles"]))


def write_progress(folder: Path, progress: WeeklyProgress) -> None:
    """Write the file with the progress."""
    children.write_progress(folder / PROGRESS, {"step": progress.step, "share": progress.share})


def read_progress(folder: Path) -> WeeklyProgress:
    """Read the progress; nothing if none was written yet."""
    try:
        return WeeklyProgress(**json.loads((folder / PROGRESS).read_bytes()))
    except (OSError, ValueError, TypeError):
        return WeeklyProgress()


def read_result(folder: Path) -> VersionComparison | None:
    """Read the result; None if there is none yet, or it is of an earlier version of the format."""
    if not (folder / RESULT).is_file():
        return None
    try:
        return read_comparison(folder / RESULT)
    except DataError:
        return None
