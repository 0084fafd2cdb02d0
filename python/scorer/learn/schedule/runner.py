"""Does steps: each once, whole or not at all, and again only when what it was made from has changed.

A step writes below a staging folder; its outputs are moved into place one by one and then recorded with the
digests of inputs and outputs. Whatever moment a run is killed at, the next one finds either the record, which
it checks, or none, and does that step again: from the same inputs it makes the same outputs.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from scorer.durable import sync_directory, write_atomically
from scorer.learn.errors import DataError
from scorer.learn.schedule.workspace import digest, digest_of

Boundary = Callable[[str], None]


@dataclass(frozen=True)
class JobStep:
    """One step.

    Attributes:
        name: what it is called.
        needs: names of files or directories of the folder that it reads, made by steps before.
        makes: names of what it writes.
        settings: everything else that its outputs depend on.
        do: writes `makes` below its second argument, reading `needs` below its first; returns what is worth
            saying, as JSON. Effects outside must be such that doing them again changes nothing.
    """

    name: str
    needs: tuple[str, ...]
    makes: tuple[str, ...]
    do: Callable[[Path, Path], Mapping[str, Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a step."""

    step: str
    state: Literal["done", "kept"]
    """Kept: it was done before, from the same inputs."""
    seconds: float
    says: Mapping[str, Any]


def run(
    steps: Sequence[JobStep], folder: Path, *, only: str | None = None, at: Boundary = lambda _: None
) -> list[Done]:
    """Does the steps of a folder in order.

    Args:
        steps: all of them.
        folder: of the generation.
        only: just this one; the ones before must be done.
        at: told every boundary at which a run may be killed, for tests and for progress.

    Raises:
        DataError: an input is not there, or the step says so. What was done stays done.
    """
    names = [step.name for step in steps]
    if only is not None and only not in names:
        raise DataError(f'no step "{only}"; there are {", ".join(names)}')
    folder.mkdir(parents=True, exist_ok=True)
    return [_run(step, folder, at) for step in steps if only in (None, step.name)]


def is_done(step: JobStep, folder: Path) -> bool:
    """Whether its record is there and says what is on disk."""
    record = _record(step, folder)
    return record is not None and _holds(record, step, folder)


def _run(step: JobStep, folder: Path, at: Boundary) -> Done:
    missing = [name for name in step.needs if not (folder / name).exists()]
    if missing:
        raise DataError(
            f'step "{step.name}" needs {missing[0]}, which is not in "{folder}"; run the steps before it'
        )
    record = _record(step, folder)
    if record is not None and _holds(record, step, folder):
        return Done(step.name, "kept", float(record["seconds"]), record["says"])
    at(f"{step.name}: begins")
    started = time.monotonic()
    record_file = folder / f"{step.name}.step.json"
    # Without its record a step is not done: from here on its outputs may be of either run.
    record_file.unlink(missing_ok=True)
    staging = folder / f".{step.name}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    says = dict(step.do(folder, staging))
    at(f"{step.name}: made")
    for name in step.makes:
        if not (staging / name).exists():
            raise DataError(f'step "{step.name}" made no {name}; this is a defect of the step')
        _replace(staging / name, folder / name)
        at(f"{step.name}: moved {name}")
    sync_directory(folder)
    shutil.rmtree(staging)
    seconds = time.monotonic() - started
    text = {
        "step": step.name,
        "inputs": _inputs(step, folder),
        "outputs": _outputs(step, folder),
        "seconds": round(seconds, 3),
        "says": says,
    }
    write_atomically(record_file, json.dumps(text, indent=1, default=str).encode() + b"\n")
    at(f"{step.name}: recorded")
    return Done(step.name, "done", seconds, says)


def _holds(record: Mapping[str, Any], step: JobStep, folder: Path) -> bool:
    return bool(record["inputs"] == _inputs(step, folder) and record["outputs"] == _outputs(step, folder))


def _replace(new: Path, old: Path) -> None:
    if old.is_dir():
        shutil.rmtree(old)
    new.replace(old)


def _inputs(step: JobStep, folder: Path) -> dict[str, str | None]:
    return {name: digest(folder / name) for name in step.needs} | {"settings": digest_of(step.settings)}


def _outputs(step: JobStep, folder: Path) -> dict[str, str | None]:
    return {name: digest(folder / name) for name in step.makes}


def _record(step: JobStep, folder: Path) -> Mapping[str, Any] | None:
    try:
        found = json.loads((folder / f"{step.name}.step.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    keys = ("inputs", "outputs", "seconds", "says")
    return found if isinstance(found, dict) and all(key in found for key in keys) else None
