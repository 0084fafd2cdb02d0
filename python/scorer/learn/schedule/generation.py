"""The steps of one generation (join, train, evaluate, gate, publish), and a run of them.

The candidate learns from everything but the last `gate.window_days` of mature decisions. On those it is
evaluated and judged beside the bundle that was live when the generation began.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorer.learn.errors import DataError
from scorer.learn.schedule.places import (
    CANDIDATE,
    EVALUATION,
    LIVE,
    VERDICT,
    GenerationPaths,
    bundle_shelf,
    copy_live,
    publish_step,
)
from scorer.learn.schedule.runner import Boundary, Done, JobStep, is_done, run
from scorer.learn.schedule.scores import score_steps
from scorer.learn.schedule.workspace import Workspace
from scorer.learn.schedule.workspace import as_of_ms as moment_of
from scorer.learn.settings import LearnSettings

if TYPE_CHECKING:
    from scorer.learn.gate.publish import ChangeRequests
    from scorer.learn.join.joining import Joined

EXPERIENCE = "experience.parquet"


def generation_steps(
    settings: LearnSettings,
    places: GenerationPaths,
    folder: Path,
    earlier: Sequence[Path] = (),
    requests: ChangeRequests | None = None,
    *,
    cache: Path | None = None,
) -> list[JobStep]:
    """The steps of the generation in a folder.

    Args:
        settings: learn.toml.
        places: logs and registry.
        folder: whose name is the moment it looks from.
        earlier: folders whose bundles the log may speak of, beside the registry's.
        requests: the platform that manages the checkpoint, if any.
        cache: of the join.
    """
    if places.schedule.kind == "score":
        return score_steps(settings, places, folder, earlier, requests)
    moment = moment_of(folder)
    gate_set, train_set, guard_set = (
        section.model_dump(mode="json") for section in (settings.gate, settings.train, settings.guardrails)
    )
    return [
        join_step(settings, places, moment, earlier, cache),
        JobStep(
            "train",
            (EXPERIENCE, LIVE),
            (CANDIDATE,),
            partial(_train, settings, moment),
            {"train": train_set, "gate": gate_set},
        ),
        JobStep(
            "evaluate",
            (EXPERIENCE, LIVE, CANDIDATE),
            (EVALUATION,),
            partial(_evaluate, settings),
            {"gate": gate_set},
        ),
        JobStep(
            "gate",
            (EXPERIENCE, LIVE, CANDIDATE),
            (VERDICT,),
            partial(_gate, settings),
            {"gate": gate_set, "guardrails": guard_set},
        ),
        publish_step(places, requests, folder, EXPERIENCE),
    ]


def join_step(
    settings: LearnSettings,
    places: GenerationPaths,
    moment: int,
    earlier: Sequence[Path],
    cache: Path | None = None,
) -> JobStep:
    """The first step: the logs as known at a moment, and the bundle that is live."""
    return JobStep(
        "join",
        (),
        (EXPERIENCE, LIVE),
        partial(_join, settings, places, moment, earlier, cache),
        {
            "as_of_ms": moment,
            "checkpoint": places.schedule.checkpoint,
            "alias": places.schedule.alias,
            "logs": list(places.schedule.logs),
            "reader_key": places.schedule.reader_key,
            "join": settings.join.model_dump(mode="json"),
        },
    )


def _join(
    settings: LearnSettings,
    places: GenerationPaths,
    moment: int,
    earlier: Sequence[Path],
    cache: Path | None,
    _there: Path,
    out: Path,
) -> Mapping[str, Any]:
    from scorer.learn import experience_files

    live = copy_live(places, out)
    joined = join_logs(settings, places, moment, earlier, cache, out / LIVE)
    experience_files.write(joined.experience, out / EXPERIENCE, joined.notes(settings.join))
    return {
        "live": live,
        "decisions": len(joined.experience),
        "findings": {one.name: one.count for one in joined.findings},
    }


def join_logs(
    settings: LearnSettings,
    places: GenerationPaths,
    moment: int,
    earlier: Sequence[Path],
    cache: Path | None,
    live: Path,
) -> Joined:
    """Join the logs as known at a moment.

    Args:
        settings: learn.toml.
        places: logs and registry.
        moment: Unix time in milliseconds.
        earlier: folders of generations, whose bundles the logs may speak of.
        cache: of the join.
        live: the live bundle.
    """
    from scorer.learn.join.joining import join

    return join(
        places.source,
        bundle_shelf(places, live, earlier),
        settings.join,
        as_of_ms=moment,
        checkpoint=places.schedule.checkpoint,
        cache=cache,
        reader_key=places.opened_reader_key,
    )


def _train(settings: LearnSettings, moment: int, there: Path, out: Path) -> Mapping[str, Any]:
    from scorer.bundle.lineage import digest_of
    from scorer.learn import experience_files
    from scorer.learn.gate.estimate import mature_window
    from scorer.learn.training.fitting import fit
    from scorer.learn.training.generation import Generation
    from scorer.learn.training.running import enough_memory, open_experience, trainer_of
    from scorer.learn.training.tasks import read_task
    from scorer.learn.training.trained import build_candidate

    task, plan, path = read_task(there / LIVE), settings.train, there / EXPERIENCE
    created = datetime.fromtimestamp(moment / 1000, UTC)
    with enough_memory(plan):
        experience = open_experience(path, plan)
        judges = mature_window(experience, settings.gate.window_days, 0)
        taught = experience.between(0, int(judges.time_ms[0])) if len(judges) else experience
        digest = digest_of(path)
        with trainer_of(task, plan, taught, there / ".training", digest) as trainer:
            trained = fit(
                task,
                taught,
                plan,
                Generation.of_bundle(there / LIVE),
                data_digest=digest,
                notes=experience_files.read_notes(path),
                trainer=trainer,
            )
            built = build_candidate(trained, out / CANDIDATE, there.name, created_at=created)
    return {
        "candidate": built.digest,
        "generation": trained.generation,
        "taught": len(taught),
        "held_back": len(judges),
        "tau": trained.weights.tau,
        "gamma": trained.gamma.gamma,
        **trained.metrics,
    }


def _evaluate(settings: LearnSettings, there: Path, out: Path) -> Mapping[str, Any]:
    """Candidate beside live on decisions that taught neither, by every estimator, with diagnostics."""
    from scorer.durable import write_atomically
    from scorer.learn import experience_files
    from scorer.learn.errors import DataError
    from scorer.learn.gate.estimate import mature_window
    from scorer.learn.gate.judge import learned_until
    from scorer.learn.ope.evaluate import evaluate

    experience = experience_files.read(there / EXPERIENCE)
    taught = [
        learned_until(json.loads((there / name / "manifest.json").read_bytes()).get("lineage")) or 0
        for name in (CANDIDATE, LIVE)
    ]
    window = mature_window(experience, settings.gate.window_days, max(taught))
    try:
        found = evaluate(window, there / CANDIDATE, baseline=there / LIVE)
    except DataError as error:
        # Nothing to estimate on is for the gate to judge, which waits then; it is no failure of the loop.
        write_atomically(out / EVALUATION, json.dumps({"unavailable": str(error)}).encode() + b"\n")
        return {"unavailable": str(error)}
    write_atomically(out / EVALUATION, json.dumps(found.as_dict(), indent=1).encode() + b"\n")
    return {
        "rows": found.logged.rows,
        "logged": found.logged.value,
        "difference": found.difference.value,
        "low": found.difference.low,
        "high": found.difference.high,
    }


def _gate(settings: LearnSettings, there: Path, out: Path) -> Mapping[str, Any]:
    from scorer.learn.experience_files import read
    from scorer.learn.gate.judge import judge
    from scorer.learn.report.write import write_verdict

    logged = read(there / EXPERIENCE)
    verdict = judge(
        logged,
        there / CANDIDATE,
        there / LIVE,
        settings.gate,
        settings.guardrails,
        experience_digest=logged.digest(),
    )
    verdict = write_verdict(verdict, there / CANDIDATE, out / VERDICT)
    evidence = verdict.evidence
    return {
        "decision": evidence.decision,
        "share": evidence.share,
        "difference": evidence.difference.value,
        "low": evidence.difference.low,
        "failed": [check.name for check in evidence.checks if not check.passed],
    }


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
