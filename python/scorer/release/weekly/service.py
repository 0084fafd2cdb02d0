"""Operations on comparisons of versions over time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import select

from scorer.errors import ScorerError
from scorer.learn.comparison.results import VersionComparison
from scorer.learn.comparison.running import ComparisonJob
from scorer.learn.comparison.settings import MOST_VERSIONS
from scorer.learn.errors import DataError
from scorer.learn.join.settings import JoinSettings
from scorer.learn.labels.settings import LabelKind, LabelSettings
from scorer.release.errors import ConflictError, InvalidError, NotFoundError
from scorer.release.store import tables as t
from scorer.release.stored_jobs import JobFiles, StoredJobs
from scorer.release.weekly import job
from scorer.release.weekly.answering import weekly_result
from scorer.release.weekly.job import WeeklyJob, WeeklyProgress
from scorer.release.weekly_answers import WeeklyComparison

if TYPE_CHECKING:
    from scorer.release.changes.parts import Parts
    from scorer.release.model import Actor
    from scorer.release.requests import NewWeekly

_TABLES: Final = 200
"""Number of recorded tables that are searched for bundles whose decisions the logs may contain."""
_ID_DIGITS: Final = 16


class WeeklyComparisons(StoredJobs[WeeklyJob, WeeklyProgress, VersionComparison]):
    """Compares versions of a checkpoint over time, one comparison at a time.

    The id of a comparison is a digest of what is asked for, with the moment rounded down to the hour. The
    same request within an hour therefore returns the stored result.

    Args:
        parts: Dependencies that operations share.
        environment: Variables of the processes in addition to those of this process.
    """

    def __init__(self, parts: Parts, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(
            parts.settings.platform.data_dir / "comparisons",
            JobFiles(
                module="scorer.release.weekly.child",
                what="comparisons",
                job=job.JOB,
                result=job.RESULT,
                error=job.ERROR,
                read_job=job.read_job,
                write_job=job.write_job,
                read_progress=job.read_progress,
                read_result=job.read_result,
            ),
            environment,
        )
        self._parts = parts

    def start(self, actor: Actor, checkpoint: str, wanted: NewWeekly) -> WeeklyComparison:
        """Start a comparison, or return the one that was started with the same values within the hour.

        Args:
            actor: The calling user.
            checkpoint: Name of the checkpoint.
            wanted: The versions, from the oldest to the newest, and the weeks.

        Raises:
            NotFoundError: There is no such checkpoint or bundle, or the actor may not see it.
            InvalidError: There are too few or too many versions, or one is given twice.
            ConflictError: No decision log is within the platform's reach.
            ThrottledError: Too many comparisons wait.
        """
        self._require(actor, checkpoint)
        digests = tuple(self._parts.bundles.info(actor, one).digest for one in wanted.versions)
        if not 1 <= len(digests) <= MOST_VERSIONS:
            raise InvalidError(f"versions: {len(digests)} are given; choose 1 to {MOST_VERSIONS}")
        if twice := sorted({one for one in digests if digests.count(one) > 1}):
            raise InvalidError(f"versions: {twice[0]} is given twice; name each version once")
        logs = self._parts.readouts.logs()
        if not logs:
            raise ConflictError(
                "no decision log is within the platform's reach; set the log of a server in platform.toml"
            )
        hour = self._parts.now().replace(minute=0, second=0, microsecond=0)
        comparison = self._comparison(checkpoint, digests, hour, wanted.weeks)
        names = sorted(logs)
        name = comparison.digest(names).removeprefix("sha256:")[:_ID_DIGITS]
        self._enqueue(
            name,
            lambda: WeeklyJob(
                comparison, tuple(logs[one] for one in names), self._bundles(checkpoint, digests)
            ),
        )
        return self.get(actor, checkpoint, name)

    def get(
        self, actor: Actor, checkpoint: str, comparison: str, *, metric: str = "", by: str = "version"
    ) -> WeeklyComparison:
        """Return the state of a comparison, with its result once it is done.

        Args:
            actor: The calling user.
            checkpoint: Name of the checkpoint.
            comparison: Id of the comparison.
            metric: Metric of the charts; empty: the first one.
            by: What a line of the charts is drawn for.

        Raises:
            NotFoundError: There is no such checkpoint or comparison, or the actor may not see it.
            InvalidError: There is no such metric or group.
        """
        self._require(actor, checkpoint)
        with self._lock:
            self._advance()
            wanted = job.read_job(self._root / comparison)
            if wanted is None or wanted.comparison.checkpoint != checkpoint:
                raise NotFoundError(
                    f'there is no comparison "{comparison[:40]}" of {checkpoint}; start it again'
                )
            state = self._state(comparison)
        for digest in wanted.comparison.digests:
            self._parts.bundles.info(actor, digest)
        name = "running" if state.progress is not None else "waiting"
        result = None
        if state.result is not None:
            name = "done"
            try:
                result = weekly_result(state.result, metric, by)
            except DataError as error:
                raise InvalidError(str(error)) from error
        progress = state.progress or WeeklyProgress()
        return WeeklyComparison(
            id=comparison,
            checkpoint=checkpoint,
            state="failed" if state.error else name,
            step=progress.step,
            share=progress.share,
            error=state.error,
            as_of=datetime.fromtimestamp(wanted.comparison.as_of_ms / 1000, UTC),
            versions=wanted.comparison.digests,
            result=result,
        )

    # --- inside ---

    def _comparison(
        self, checkpoint: str, digests: tuple[str, ...], hour: datetime, weeks: int | None
    ) -> ComparisonJob:
        own = self._parts.settings.checkpoints[checkpoint]
        settings = own.comparison
        changed = settings.of_weeks(weeks)
        labels = settings.labels or LabelSettings(
            kinds=(LabelKind(kind=own.outcome_of("score")),),
            wait_hours=own.matures("score") / timedelta(hours=1),
            unproven=own.unproven,
        )
        joining = JoinSettings(
            outcome=own.outcome_of("action"),
            hours=max(own.matures("action") / timedelta(hours=1), 1e-3),
            unproven=own.unproven,
        )
        return ComparisonJob(checkpoint, digests, round(hour.timestamp() * 1000), changed, labels, joining)

    def _bundles(self, checkpoint: str, digests: tuple[str, ...]) -> tuple[str, ...]:
        """Return the directories of the versions and of all bundles that have had a lane."""
        with self._parts.store.read() as connection:
            c = t.recorded_tables.c
            query = select(c.answer, c.observe).filter_by(checkpoint=checkpoint).order_by(c.revision.desc())
            tables = connection.execute(query.limit(_TABLES)).all()
        lanes = [lane.bundle for answer, observe in tables for lane in (*answer, *observe)]
        found = [self._local(one) for one in dict.fromkeys((*digests, *lanes))]
        return tuple(str(one) for one in found if one is not None)

    def _local(self, digest: str) -> Path | None:
        try:
            return self._parts.bundles.local(digest)
        except ScorerError:
            # A bundle that the registry no longer has cannot be read. Its decisions are left out.
            return None

    def _require(self, actor: Actor, checkpoint: str) -> None:
        known = tuple(self._parts.settings.checkpoints)
        if checkpoint not in self._parts.access.checkpoints(actor, known):
            raise NotFoundError(
                f'there is no checkpoint "{checkpoint}" that you may see; the page of checkpoints lists '
                "those that you may see"
            )
