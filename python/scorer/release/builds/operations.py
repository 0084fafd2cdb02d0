"""Builds of bundles from model files, which modelers request and the platform runs in the background."""

from __future__ import annotations

import builtins
import secrets
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, insert, select, update

from scorer.errors import ScorerError
from scorer.release.access.roles import actor_of
from scorer.release.answers import BuildInfo
from scorer.release.builds import job, receiving
from scorer.release.builds.job import BuildJob
from scorer.release.builds.receiving import Sent
from scorer.release.builds.running import Processes
from scorer.release.errors import (
    ConflictError,
    InvalidError,
    NotFoundError,
    PlatformError,
    QuotaError,
    UnreachableError,
)
from scorer.release.lanes import recorded
from scorer.release.model import Actor, BuildState, Role
from scorer.release.requests import NewBuild
from scorer.release.store import tables as t
from scorer.release.store import utcnow
from scorer.release.store.rows import read, row_of

if TYPE_CHECKING:
    from scorer.events import EventLog
    from scorer.release.access import Access
    from scorer.release.audit import Audit
    from scorer.release.bundles import Bundles
    from scorer.release.settings import PlatformFile
    from scorer.release.store import Store

_PROJECT_AT_ONCE = 4
"""Largest number of builds of one project that wait or run."""
_STARTS = 3
"""Number of starts after which a build fails, because it may be the cause of the platform's restarts."""
_SEEN_EVERY = timedelta(seconds=30)
_LOST_AFTER = timedelta(minutes=10)
_OPEN = (BuildState.WAITING, BuildState.RUNNING)


class Builds:
    """Builds bundles from model files.

    Args:
        settings: The settings.
        store: The database.
        access: Checks roles.
        audit: The audit log, which receives an entry per build.
        bundles: Stores the bundles that are built.
        processes: Runs the processes of builds; None: in the data directory.
        now: Returns the current time, aware and in UTC.
        events: The platform's event log; None: no events are written.
    """

    def __init__(
        self,
        settings: PlatformFile,
        store: Store,
        access: Access,
        audit: Audit,
        bundles: Bundles,
        *,
        processes: Processes | None = None,
        now: Callable[[], datetime] = utcnow,
        events: EventLog | None = None,
    ) -> None:
        self._settings, self._limits = settings, settings.builds
        self._store, self._access, self._audit, self._bundles = store, access, audit, bundles
        self._processes = processes or Processes(
            settings.platform.data_dir / "builds", seconds=self._limits.minutes * 60
        )
        self._now, self._events = now, events
        # Requests and the thread of builds use the processes concurrently.
        self._lock = threading.Lock()

    # --- requests ---

    def start(self, actor: Actor, project: str, wanted: NewBuild, files: Mapping[str, Sent]) -> BuildInfo:
        """Receive the files of a build and start it in the background.

        Args:
            actor: A modeler of the project.
            project: Name of the project.
            wanted: The request.
            files: The files `model` and `table`, and optionally `validation` and `example`.

        Raises:
            InvalidError: A field or a file is not valid.
            QuotaError: Too many builds wait, or the project has reached its limit on bundles.
        """
        self._access.require(actor, Role.MODELER, project)
        self._check(wanted, files)
        self._bundles.room(project)
        self._check_waiting(project)
        live = self._live(actor, wanted.checkpoint) if wanted.checkpoint else None
        build = f"bd-{secrets.token_hex(6)}"
        folder = self._processes.folder(build)
        try:
            folder.mkdir(parents=True)
            kept = receiving.receive(files, folder, limit=self._bundles.upload_bytes)
            job.write_job(folder, self._job(build, actor, wanted, kept, live))
            return self._insert(actor, project, build, wanted, list(kept.values()))
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise UnreachableError(
                f"the platform's data directory cannot be written: {error.strerror}; ask an operator"
            ) from None
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def get(self, actor: Actor, build: str) -> BuildInfo:
        """Return a build of a project that the actor may see."""
        with self._store.read() as connection:
            row = row_of(connection, t.builds, id=build)
        if row is None or not (actor.admin or row.project in actor.roles):
            raise NotFoundError(f'there is no build "{build[:40]}" that you may see; list those of a project')
        return read(BuildInfo, row)

    def list(self, actor: Actor, *, project: str | None = None, limit: int = 50) -> Sequence[BuildInfo]:
        """Return the builds that the actor may see, newest first.

        Args:
            actor: The calling user.
            project: Only builds of this project.
            limit: Limit on the number of builds.
        """
        if project is not None:
            self._access.require(actor, Role.VIEWER, project)
        wanted = [project] if project else [one.name for one in self._access.projects(actor)]
        b = t.builds.c
        query = select(t.builds).where(b.project.in_(wanted)).order_by(b.created_at.desc(), b.id.desc())
        with self._store.read() as connection:
            return [read(BuildInfo, row) for row in connection.execute(query.limit(limit))]

    def cancel(self, actor: Actor, build: str) -> BuildInfo:
        """Cancel a build that waits or runs. Its files are removed.

        Raises:
            ConflictError: The build has ended already.
        """
        found = self.get(actor, build)
        self._access.require(actor, Role.MODELER, found.project)
        ended = self._end(build, BuildState.CANCELLED, step="", by=actor)
        if not ended:
            raise ConflictError(f"{build} has ended already; its page shows the result")
        return self.get(actor, build)

    # --- in the background ---

    def tick(self) -> None:
        """Advance the builds whose files this process has: claim, start, check and end them."""
        with self._lock:
            b = t.builds.c
            with self._store.read() as connection:
                query = select(t.builds).where(b.state.in_(_OPEN)).order_by(b.created_at, b.id)
                rows = connection.execute(query).all()
            wanted = {row.id for row in rows}
            for gone in set(self._processes.claimed) - wanted:
                self._processes.release(gone, remove=True)
            self._processes.sweep(wanted)
            for row in rows:
                self._advance(row)

    def close(self) -> None:
        """End the processes of all builds. The next process of the platform continues with their files."""
        with self._lock:
            self._processes.close()

    # --- helpers ---

    def _advance(self, row: Any) -> None:
        processes = self._processes
        if not processes.has_files(row.id):
            if self._now() - row.seen_at > _LOST_AFTER:
                self._fail(
                    row, "the process of the platform that had its files has ended; send the files again"
                )
            return
        if self._now() - row.seen_at > _SEEN_EVERY:
            self._set(row.id, seen_at=self._now())
        if not processes.claim(row.id):
            return
        if (built := processes.result(row.id)) is not None:
            self._keep(row, built)
        elif not processes.is_started(row.id):
            if row.starts >= _STARTS:
                self._fail(row, f"the build was interrupted {_STARTS} times; send the files again")
                return
            self._set(row.id, state=BuildState.RUNNING, starts=row.starts + 1, step="Starting")
            processes.start(row.id)
        elif why := processes.failure(row.id):
            # The result may have been written between the two checks.
            if (late := processes.result(row.id)) is not None:
                self._keep(row, late)
            else:
                self._fail(row, why)
        elif (words := job.read_progress(processes.folder(row.id))) and words != row.step:
            self._set(row.id, step=words)

    def _keep(self, row: Any, built: job.BuildResult) -> None:
        with self._store.read() as connection:
            person = row_of(connection, t.users, name=row.created_by, removed_at=None)
            admin = person is not None and bool(person.admin)
            actor = actor_of(connection, row.created_by, admin=admin, via="platform")
        try:
            directory = self._processes.folder(row.id) / job.OUTPUT
            info = self._bundles.keep(actor, row.project, directory, build=row.id)
        except UnreachableError:
            raise  # the database or the registry is away: the next round tries again
        except (ScorerError, OSError) as error:
            self._fail(row, str(error) if isinstance(error, PlatformError) else "the bundle cannot be stored")
            return
        if self._end(row.id, BuildState.DONE, step="", digest=info.digest, notes=list(built.notes)):
            self._say("build_done", row, digest=info.digest)
        self._processes.release(row.id, remove=True)

    def _fail(self, row: Any, why: str) -> None:
        self._end(row.id, BuildState.FAILED, error=why)
        self._processes.release(row.id, remove=True)
        self._say("build_failed", row, error=why)

    def _end(self, build: str, state: BuildState, *, by: Actor | None = None, **values: Any) -> bool:
        """End a build. Return False if it has ended already."""
        b = t.builds.c
        with self._store.write() as connection:
            done = connection.execute(
                update(t.builds)
                .where(b.id == build, b.state.in_(_OPEN))
                .values(state=state, ended_at=self._now(), **values)
            )
            if done.rowcount and by is not None:
                project = connection.scalar(select(b.project).where(b.id == build)) or ""
                self._audit.append(connection, by, "build.cancel", build, project=project)
            return bool(done.rowcount)

    def _set(self, build: str, **values: Any) -> None:
        with self._store.write() as connection:
            connection.execute(
                update(t.builds).where(t.builds.c.id == build, t.builds.c.state.in_(_OPEN)).values(**values)
            )

    def _check(self, wanted: NewBuild, files: Mapping[str, Sent]) -> None:
        if not self._limits.enabled:
            raise InvalidError(
                "this platform builds no bundles (builds.enabled is false); build one with "
                "`scorer bundle build`, and upload it"
            )
        if wanted.schema_from == "example" and "example" not in files:
            raise InvalidError("example: the schema is taken from an example request; choose its file")
        if wanted.schema_from == "lines" and not wanted.features:
            raise InvalidError("features: the schema is taken from lines of text; write them")
        if wanted.schema_from == "live" and not wanted.checkpoint:
            raise InvalidError("checkpoint: the schema is copied from a live bundle; choose its checkpoint")
        if not wanted.bands and not wanted.checkpoint:
            raise InvalidError(
                'bands: write thresholds such as "0 approve", or choose a checkpoint to copy them from'
            )
        if wanted.calibration != "none" and not wanted.label:
            raise InvalidError("label: calibration needs the column with what came true; name it")

    def _check_waiting(self, project: str) -> None:
        b = t.builds.c
        with self._store.read() as connection:
            query = select(b.project, func.count()).where(b.state.in_(_OPEN)).group_by(b.project)
            waiting = {str(name): int(count) for name, count in connection.execute(query).all()}
        if waiting.get(project, 0) >= _PROJECT_AT_ONCE or sum(waiting.values()) >= self._limits.waiting:
            raise QuotaError(
                f"{waiting.get(project, 0)} builds of project {project} and {sum(waiting.values())} in all "
                "wait or run; wait until one has ended"
            )

    def _live(self, actor: Actor, checkpoint: str) -> Path:
        """Return the directory of the bundle that answers at a checkpoint, if the actor may see it."""
        if checkpoint not in self._settings.checkpoints:
            raise NotFoundError(
                f'there is no checkpoint "{checkpoint}"; there are {", ".join(self._settings.checkpoints)}'
            )
        with self._store.read() as connection:
            reference = recorded.live_reference(connection, self._settings, checkpoint)
        return self._bundles.local(self._bundles.info(actor, reference).digest)

    def _job(
        self,
        build: str,
        actor: Actor,
        wanted: NewBuild,
        kept: Mapping[str, Mapping[str, Any]],
        live: Path | None,
    ) -> BuildJob:
        def stored(field: str) -> str:
            return str(kept[field]["stored"]) if field in kept else ""

        return BuildJob(
            id=build,
            user=actor.user,
            name=wanted.name,
            version=wanted.version,
            model=stored("model"),
            table=stored("table"),
            validation=stored("validation"),
            example=stored("example"),
            live=str(live.absolute()) if live else "",
            schema=wanted.schema_from,
            features=wanted.features,
            bands=wanted.bands,
            calibration=wanted.calibration,
            label=wanted.label,
            model_digest=str(kept["model"]["sha256"]),
            table_digest=str(kept["table"]["sha256"]),
            memory_bytes=self._limits.memory_mb << 20,
            seconds=self._limits.minutes * 60,
            file_bytes=self._bundles.upload_bytes,
        )

    def _insert(
        self, actor: Actor, project: str, build: str, wanted: NewBuild, kept: builtins.list[dict[str, Any]]
    ) -> BuildInfo:
        files = [{key: one[key] for key in ("field", "name", "bytes", "sha256")} for one in kept]
        with self._store.write() as connection:
            connection.execute(
                insert(t.builds).values(
                    id=build,
                    project=project,
                    name=wanted.name,
                    version=wanted.version,
                    checkpoint=wanted.checkpoint or "",
                    state=BuildState.WAITING,
                    step="",
                    files=files,
                    error="",
                    notes=[],
                    starts=0,
                    created_by=actor.user,
                    created_at=self._now(),
                    seen_at=self._now(),
                )
            )
            self._audit.append(
                connection,
                actor,
                "build.start",
                build,
                project=project,
                details={"name": wanted.name, "files": files},
            )
            return read(BuildInfo, row_of(connection, t.builds, id=build))  # type: ignore[arg-type]

    def _say(self, event: str, row: Any, **fields: str) -> None:
        if self._events is not None:
            self._events.info(event, build=row.id, project=row.project, user=row.created_by, **fields)
