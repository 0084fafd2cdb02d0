"""Operations on analyses of adoption."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scorer.causal import settings as causal_settings
from scorer.causal.figures import causal_charts
from scorer.causal.page import check_rows
from scorer.causal.results import FORMAT, DeltaCV
from scorer.errors import ScorerError
from scorer.release.adoption import job
from scorer.release.adoption.job import AdoptionJob, AdoptionProgress
from scorer.release.adoption_answers import (
    AdoptionAnalysis,
    AdoptionCheck,
    AdoptionResult,
    AdoptionTasks,
    AdoptionTaskView,
)
from scorer.release.errors import InvalidError, NotFoundError
from scorer.release.stored_jobs import JobFiles, StoredJobs

if TYPE_CHECKING:
    from scorer.release.adoption_settings import AdoptionTask
    from scorer.release.changes.parts import Parts
    from scorer.release.model import Actor
    from scorer.release.requests import NewAdoptionAnalysis

_ID_DIGITS: Final = 16


class AdoptionAnalyses(StoredJobs[AdoptionJob, AdoptionProgress, DeltaCV]):
    """Estimates the value of adoption for the tasks of a checkpoint, one analysis at a time.

    The id of an analysis is a digest of its task, its settings, and the size and time of its tables. The same
    request therefore returns the stored result until the tables or settings change.

    Args:
        parts: Dependencies that operations share.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(
            parts.settings.platform.data_dir / "adoption",
            JobFiles(
                module="scorer.release.adoption.child",
                what="analyses",
                job=job.JOB,
                result=job.RESULT,
                error=job.ERROR,
                read_job=job.read_job,
                write_job=job.write_job,
                read_progress=job.read_progress,
                read_result=job.read_result,
            ),
        )
        self._parts = parts

    def tasks(self, actor: Actor, checkpoint: str) -> AdoptionTasks:
        """Return the analyses that can be started at a checkpoint.

        Raises:
            NotFoundError: There is no such checkpoint, or the actor may not see it.
        """
        found = []
        for name, task in self._configured(actor, checkpoint).items():
            try:
                product = causal_settings.load(task.task).product
            except ScorerError:
                # Starting the analysis reports what is wrong.
                product = ""
            newest = next(
                (
                    folder.name
                    for folder in self._stored()
                    if (own := job.read_job(folder)) is not None
                    and (own.checkpoint, own.name) == (checkpoint, name)
                ),
                None,
            )
            found.append(AdoptionTaskView(name, product, newest))
        return AdoptionTasks(tuple(found))

    def start(self, actor: Actor, checkpoint: str, wanted: NewAdoptionAnalysis) -> AdoptionAnalysis:
        """Start an analysis, or return the one of the same tables and settings.

        Args:
            actor: The calling user.
            checkpoint: Name of the checkpoint.
            wanted: The task.

        Raises:
            NotFoundError: There is no such checkpoint or task, or the actor may not see it.
            InvalidError: The task cannot be read.
            ThrottledError: Too many analyses wait.
        """
        configured = self._configured(actor, checkpoint)
        if wanted.task not in configured:
            raise NotFoundError(
                f'there is no task "{wanted.task[:40]}" of {checkpoint}; there are '
                f"{', '.join(configured) or 'none: set checkpoints.NAME.adoption in platform.toml'}"
            )
        task = configured[wanted.task]
        own = AdoptionJob(checkpoint, wanted.task, str(task.data), str(task.task))
        try:
            settings = causal_settings.load(task.task)
            content = [FORMAT, checkpoint, wanted.task, settings.model_dump(mode="json"), _stamps(task.data)]
            content.append(_stamps(Path(settings.adoptions)) if settings.adoptions else [])
        except (ScorerError, OSError) as error:
            raise InvalidError(f"task {wanted.task}: {error}") from error
        name = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:_ID_DIGITS]
        self._enqueue(name, lambda: own)
        return self.get(actor, checkpoint, name)

    def get(self, actor: Actor, checkpoint: str, analysis: str) -> AdoptionAnalysis:
        """Return the state of an analysis, with its result once it is done.

        Raises:
            NotFoundError: There is no such checkpoint or analysis, or the actor may not see it.
        """
        self._configured(actor, checkpoint)
        with self._lock:
            self._advance()
            wanted = job.read_job(self._root / analysis)
            if wanted is None or wanted.checkpoint != checkpoint:
                raise NotFoundError(f'there is no analysis "{analysis[:40]}" of {checkpoint}; start it again')
            state = self._state(analysis)
        name = "running" if state.progress is not None else "waiting"
        progress = state.progress or AdoptionProgress()
        return AdoptionAnalysis(
            id=analysis,
            checkpoint=checkpoint,
            task=wanted.name,
            state="failed" if state.error else "done" if state.result is not None else name,
            step=progress.step,
            share=progress.share,
            error=state.error,
            result=None if state.result is None else _answer(state.result),
        )

    def _configured(self, actor: Actor, checkpoint: str) -> dict[str, AdoptionTask]:
        known = tuple(self._parts.settings.checkpoints)
        if checkpoint not in self._parts.access.checkpoints(actor, known):
            raise NotFoundError(
                f'there is no checkpoint "{checkpoint}" that you may see; the page of checkpoints lists '
                "those that you may see"
            )
        return dict(self._parts.settings.checkpoints[checkpoint].adoption)


def _stamps(place: Path) -> list[tuple[str, int, int]]:
    """Return names, sizes and times of the files of a table."""
    files = sorted(place.rglob("*.parquet")) if place.is_dir() else [place]
    return [(str(one), one.stat().st_size, one.stat().st_mtime_ns) for one in files]


def _answer(found: DeltaCV) -> AdoptionResult:
    return AdoptionResult(
        product=found.product,
        currency=found.currency,
        first_month=found.months[0],
        last_month=found.months[1],
        units=found.units,
        controls=found.controls,
        verdict=found.verdict,
        reasons=found.reasons,
        effects=found.effects,
        checks=tuple(AdoptionCheck(*row) for row in check_rows(found)),
        balance=found.balance,
        path=found.path,
        trend=found.trend,
        in_time=found.in_time,
        in_space=found.in_space,
        chains=found.chains,
        hidden_bias=found.hidden_bias,
        findings=found.findings,
        notes=found.notes,
        figures=causal_charts(found),
    )
