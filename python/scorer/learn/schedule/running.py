"""One run of the loop: which generation, which steps, under the workspace's lock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scorer.learn.errors import DataError
from scorer.learn.schedule.generation import GenerationPaths, generation_steps
from scorer.learn.schedule.runner import Boundary, Done, is_done, run
from scorer.learn.schedule.workspace import Workspace
from scorer.learn.schedule.workspace import as_of_ms as moment_of
from scorer.learn.settings import LearnSettings

if TYPE_CHECKING:
    from scorer.learn.gate.publish import ChangeRequests

STEPS = ("join", "train", "evaluate", "gate", "publish")


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run did.

    Attributes:
        folder: the generation's, or the overlay's.
        steps: in their order.
    """

    folder: Path
    steps: tuple[Done, ...]


def run_generation(
    workspace: Workspace,
    settings: LearnSettings,
    base: Path,
    *,
    step: str | None = None,
    as_of_ms: int | None = None,
    wait_seconds: float = 0.0,
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    at: Boundary = lambda _: None,
    requests: ChangeRequests | None = None,
) -> RunReport:
    """Does all steps of a generation, or one of them.

    Args:
        workspace: where.
        settings: learn.toml.
        base: the folder of that file.
        step: only this one; by default all, those that are done left as they are.
        as_of_ms: the moment that names the generation: runs of the same moment do the same, once. None: the
            newest generation if it is under way, else a new one that looks from now; a single step but the
            first belongs to the newest.
        wait_seconds: how long to wait for another run in the workspace to end.
        clock_ms: Unix time in milliseconds.
        at: called at every boundary.
        requests: the platform that manages the checkpoint; None: none does, and publishing moves the alias.

    Raises:
        BusyError: another run uses the workspace.
        DataError: a step cannot be done.
    """
    if step is not None and step not in STEPS:
        raise DataError(f'no step "{step}"; there are {", ".join(STEPS)}')
    places = GenerationPaths(settings, base)
    with workspace.locked(wait_seconds):
        known = workspace.generations()
        folder = _folder(workspace, settings, places, known, step, as_of_ms, clock_ms)
        earlier = [one for one in known if one.name < folder.name]
        steps = generation_steps(settings, places, folder, earlier, requests, cache=workspace.join_cache)
        done = run(steps, folder, only=step, at=at)
        workspace.prune(settings.schedule.keep)
    return RunReport(folder, tuple(done))


def is_under_way(settings: LearnSettings, places: GenerationPaths, folder: Path, now_ms: int) -> bool:
    """Whether a generation has steps to do, and is not too old for them.

    One that cannot be finished (the alias was moved, the data are bad) must not hold up the loop for ever.
    """
    if now_ms - moment_of(folder) > settings.schedule.abandon_hours * 3_600_000:
        return False
    return not all(is_done(step, folder) for step in generation_steps(settings, places, folder))


def _folder(
    workspace: Workspace,
    settings: LearnSettings,
    places: GenerationPaths,
    known: list[Path],
    step: str | None,
    as_of_ms: int | None,
    clock_ms: Callable[[], int],
) -> Path:
    if as_of_ms is not None:
        return workspace.generation(as_of_ms)
    newest = known[-1] if known else None
    if newest is not None and is_under_way(settings, places, newest, clock_ms()):
        return newest
    if step in (None, STEPS[0]):
        return workspace.generation(clock_ms())
    if newest is None:
        raise DataError(f'"{workspace.path}" holds no generation; begin with the step "{STEPS[0]}"')
    return newest
