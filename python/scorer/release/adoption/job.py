"""The files that the platform and the process of an analysis exchange: job, progress and result."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from scorer.causal.results import DeltaCV
from scorer.causal.results import read_result as read_file
from scorer.durable import write_atomically
from scorer.learn.errors import DataError
from scorer.release import children

JOB: Final = "job.json"
PROGRESS: Final = "progress.json"
RESULT: Final = "result.json"
ERROR: Final = "failed.txt"


@dataclass(frozen=True, slots=True)
class AdoptionJob:
    """One analysis.

    Attributes:
        checkpoint: The checkpoint of the task.
        name: The task's name.
        data: Path of the table of values.
        task: Path of the file of the task.
    """

    checkpoint: str
    name: str
    data: str
    task: str


@dataclass(frozen=True, slots=True)
class AdoptionProgress:
    """Progress of a running analysis."""

    step: str = ""
    share: float = 0.0
    """Share of the step that is done."""


def write_job(folder: Path, job: AdoptionJob) -> None:
    """Write the file of a job."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / JOB, json.dumps(asdict(job)).encode())


def read_job(folder: Path) -> AdoptionJob | None:
    """Read a job; None if there is none."""
    try:
        return AdoptionJob(**json.loads((folder / JOB).read_bytes()))
    except FileNotFoundError:
        return None


def write_progress(folder: Path, progress: AdoptionProgress) -> None:
    """Write the file with the progress."""
    children.write_progress(folder / PROGRESS, {"step": progress.step, "share": progress.share})


def read_progress(folder: Path) -> AdoptionProgress:
    """Read the progress; nothing if none was written yet."""
    try:
        return AdoptionProgress(**json.loads((folder / PROGRESS).read_bytes()))
    except (OSError, ValueError, TypeError):
        return AdoptionProgress()


def read_result(folder: Path) -> DeltaCV | None:
    """Read the result; None if there is none yet, or it is of an earlier version of the format."""
    if not (folder / RESULT).is_file():
        return None
    try:
        return read_file(folder / RESULT)
    except DataError:
        return None
