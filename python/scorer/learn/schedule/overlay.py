"""The overlay's job, every few minutes: fit what moved since training, publish the next revision.

It looks from now each time and keeps its newest folder, and what it has learned so far (`STATE`). While a
generation is between its first and its last step it waits: the gate judges against the bundle that was live
when it began.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorer.learn.schedule.generation import RunReport, is_under_way, join_logs
from scorer.learn.schedule.places import LIVE, GenerationPaths, bundle_shelf, copy_live
from scorer.learn.schedule.runner import Boundary, Done, JobStep, run
from scorer.learn.schedule.workspace import BusyError, Workspace
from scorer.learn.settings import LearnSettings

if TYPE_CHECKING:
    from scorer.learn.gate.publish import ChangeRequests
    from scorer.learn.overlay.stream import Fitted

OVERLAY = "overlay.json"
REVISION, FITTED, REVISED = "revision", "fitted.json", "revised.json"
FOLDER, STATE = "overlay", "overlay-state"


def run_overlay(
    workspace: Workspace,
    settings: LearnSettings,
    base: Path,
    *,
    as_of_ms: int | None = None,
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    at: Boundary = lambda _: None,
    requests: ChangeRequests | None = None,
) -> RunReport:
    """Fits and publishes once, unless another run uses the workspace or a generation is under way.

    Args:
        workspace: where.
        settings: learn.toml.
        base: the folder of that file.
        as_of_ms: the moment to look from; None: now.
        clock_ms: Unix time.
        at: called at every boundary.
        requests: the platform that manages the checkpoint: the revision is published by a change request of
            kind `overlay` there, under a standing permission. None: the alias is moved.

    Raises:
        DataError: there is nothing to fit on.
    """
    places = GenerationPaths(settings, base)
    folder = workspace.path / FOLDER
    with _lock_or_busy(workspace) as busy:
        if busy is not None:
            return RunReport(folder, (Done("overlay", "kept", 0.0, {"waits": busy}),))
        known = workspace.generations()
        moment = clock_ms() if as_of_ms is None else as_of_ms
        if known and is_under_way(settings, places, known[-1], moment):
            says = {"waits": f"generation {known[-1].name} is under way"}
            return RunReport(folder, (Done("overlay", "kept", 0.0, says),))
        steps = [
            JobStep(
                "fit",
                (),
                (LIVE, FITTED, REVISION),
                partial(_fit, settings, places, workspace, moment, known[-2:]),
                {
                    "as_of_ms": moment,
                    "checkpoint": places.schedule.checkpoint,
                    "alias": places.schedule.alias,
                    "logs": list(places.schedule.logs),
                    "reader_key": places.schedule.reader_key,
                    "join": settings.join.model_dump(mode="json"),
                    "overlay": settings.overlay.model_dump(mode="json"),
                },
            ),
            JobStep("revise", (LIVE, FITTED, REVISION), (REVISED,), partial(_publish, places, requests)),
        ]
        return RunReport(folder, tuple(run(steps, folder, at=at)))


@contextmanager
def _lock_or_busy(workspace: Workspace) -> Iterator[str | None]:
    """Holds the lock, or gives the reason why not: the next run of the overlay is minutes away."""
    with ExitStack() as stack:
        try:
            stack.enter_context(workspace.locked())
        except BusyError as error:
            yield str(error)
        else:
            yield None


def _fit(
    settings: LearnSettings,
    places: GenerationPaths,
    workspace: Workspace,
    moment: int,
    earlier: Sequence[Path],
    _there: Path,
    out: Path,
) -> Mapping[str, Any]:
    from scorer.bundle import revise
    from scorer.durable import write_atomically

    digest, live = copy_live(places, out), out / LIVE
    found, read = _fitted(settings, places, workspace, moment, earlier, live)
    (out / REVISION).mkdir()
    has_one = (live / OVERLAY).is_file()
    if found.spec is not None or has_one:
        revise(
            live,
            out / REVISION / "bundle",
            overlay=found.spec,
            remove_overlay=found.spec is None,
            created_at=datetime.fromtimestamp(moment / 1000, UTC),
        )
    says = {
        "live": digest,
        **read,
        "outcomes": found.learner.outcomes,
        "switched_off": found.spec is None,
        "revised": (out / REVISION / "bundle").is_dir(),
    }
    write_atomically(out / FITTED, json.dumps(says, default=str).encode() + b"\n")
    return says


def _fitted(
    settings: LearnSettings,
    places: GenerationPaths,
    workspace: Workspace,
    moment: int,
    earlier: Sequence[Path],
    live: Path,
) -> tuple[Fitted, dict[str, Any]]:
    """Fit on what is new; on everything if the bundle does not say what it has learned from."""
    import numpy as np

    from scorer.learn.experience import State
    from scorer.learn.join.joining import window_begin_us
    from scorer.learn.overlay.incremental import OverlayInputs, update
    from scorer.learn.overlay.live import oracle_scores, untaught_by_lineage, untaught_since
    from scorer.learn.overlay.stream import fit
    from scorer.learn.training.tasks import read_task

    task, untaught_ms = read_task(live), untaught_by_lineage(live)
    if untaught_ms is not None:
        inputs = OverlayInputs(
            source=places.source,
            shelf=bundle_shelf(places, live, earlier),
            live=live,
            task=task,
            join=settings.join,
            overlay=settings.overlay,
            checkpoint=places.schedule.checkpoint,
            untaught_ms=untaught_ms,
            reader_key=places.opened_reader_key,
        )
        done = update(inputs, workspace.join_cache, workspace.path / STATE, moment)
        return done.fitted, {
            "decisions": done.kept,
            "findings": {one.name: one.count for one in done.findings},
            "rebuilt": done.rebuilt,
            "joined": done.joined,
            "replayed": done.replayed,
        }
    joined = join_logs(settings, places, moment, earlier, workspace.join_cache, live)
    log = joined.experience
    scores = np.full(len(log), np.nan)
    new = np.flatnonzero(log.time_ms >= untaught_since(live, log))
    scores[new] = oracle_scores(live, log.take(new))
    since_ms = -(-window_begin_us(settings.join, moment) // 1000)
    return fit(log, scores, task, settings.overlay, moment, since_ms=since_ms), {
        "decisions": int((log.state == State.SETTLED).sum()),
        "findings": {one.name: one.count for one in joined.findings},
    }


def _publish(
    places: GenerationPaths, requests: ChangeRequests | None, there: Path, out: Path
) -> Mapping[str, Any]:
    """Publish the revision, unless the alias was moved since it was fitted."""
    from scorer.bundle import read_manifest
    from scorer.durable import write_atomically
    from scorer.learn.errors import DataError
    from scorer.registry import open_registry
    from scorer.registry.reference import parse_alias

    bundle, target = there / REVISION / "bundle", parse_alias(places.schedule.alias)
    says: dict[str, Any] = {"digest": None}
    if bundle.is_dir():
        store = open_registry(places.registry)
        try:
            digest = read_manifest(bundle).digest
            now, known = store.resolve(str(target)).digest, read_manifest(there / LIVE).digest
            if now not in (known, digest):
                raise DataError(
                    f'"{target}" was moved to {now[:19]} while the overlay was fitted; the next run fits anew'
                )
            store.push(bundle, by="overlay")
            says = {"digest": digest}
            if requests is None:
                store.alias(target.name, target.alias, digest, by="overlay", reason="overlay: next revision")
            else:
                fitted = json.loads((there / FITTED).read_bytes())
                requested = requests.request(
                    "overlay",
                    digest,
                    title=f"Overlay {digest[7:19]}",
                    description=f"fitted on {fitted['outcomes']} outcomes, for {known[7:19]}",
                    evidence={**fitted, "revision_of": known},
                )
                says |= asdict(requested)
        finally:
            store.close()
    write_atomically(out / REVISED, json.dumps(says).encode() + b"\n")
    return says
