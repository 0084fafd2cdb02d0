"""Incremental copying of records from the fleet's logs into parts. It can be interrupted at any point."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import select

from scorer.errors import LogError
from scorer.log.scanning import WITHDRAWN, Entry
from scorer.release.fleet import Fleet, Member, Statuses
from scorer.release.model import ChangeState
from scorer.release.readout import parts, rows
from scorer.release.readout.schemas import Schemas
from scorer.release.readout.segmenter import Segmenter
from scorer.release.segments.settings import SegmentPlan
from scorer.release.store import Store, micros
from scorer.release.store.rows import upsert
from scorer.release.store.tables import changes, cursors

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa

    from scorer.log.source.records import RecordLog, RecordSource
    from scorer.release.timeseries.batch import RollupBatch

_BATCH = 20_000
_SECONDS = 1.0
_COUNTERS_EVERY_US = 10_000_000
# The longest booking is two weeks, and chargebacks are reported within four months.
_KEEP_DAYS, _KEEP_OUTCOMES_DAYS = 35, 150


@dataclass(frozen=True, slots=True)
class LogProgress:
    """How far a server's log has been read."""

    log: str
    next: int
    notes: tuple[str, ...] = ()
    """Sentences about records that were lost."""


Cases = Callable[[str, Sequence[Entry]], None]
"""Takes a batch of records of a server's log into the review queue."""


class Rollups(Protocol):
    """Counts the records over time, batch by batch."""

    def batch(self, server: str) -> RollupBatch:
        """Return an empty batch for records of a server's log."""

    def apply(self, log: str, first: int, last: int, batch: RollupBatch) -> None:
        """Count the records from `first` to `last` of a log, unless they are counted already."""


class Collector:
    """Reads each log from where it stopped.

    Args:
        root: Directory of the parts.
        store: Store of the cursors and of the releases, whose checkpoints have a canary.
        fleet: The servers, with the counters of their lanes.
        source: The logs of the servers.
        schemas: Schemas of the bundles in the logs.
        plan: Returns how the rows of a checkpoint are split into segments; None if the platform does not
            manage it.
        now: Returns the current time, aware and in UTC.
        rollups: Counts the same records over time.
        cases: Receives the server's name and each batch of records, for the review queue. It may receive a
            record again after a kill. None: there is none.
        statuses: The servers' latest statuses, for the counters.
        batch: Number of records after which the cursor is saved.
        seconds: Time after which a call ends, approximately; the next call continues.
    """

    def __init__(
        self,
        root: Path,
        store: Store,
        fleet: Fleet,
        source: RecordSource,
        schemas: Schemas,
        *,
        plan: Callable[[str], SegmentPlan | None],
        now: Callable[[], datetime],
        rollups: Rollups,
        cases: Cases | None = None,
        statuses: Statuses | None = None,
        batch: int = _BATCH,
        seconds: float = _SECONDS,
    ) -> None:
        self._root, self._store, self._fleet, self._source = root, store, fleet, source
        self._schemas, self._now = schemas, now
        self._segments = Segmenter(schemas, plan)
        self._statuses = statuses or Statuses(fleet)
        self._rollups, self._cases = rollups, cases
        self._batch, self._seconds = batch, seconds
        self._remembered = rows.RecentDecisions()
        self._resume = ""
        self._expired_at = 0.0
        self._counted: dict[Path, tuple[int, str]] = {}

    def collect(self) -> int:
        """Read the new records of all logs; return their number."""
        until = time.monotonic() + self._seconds
        self._expire()
        watched = self._released()
        # Those of live servers come first: their decisions are needed for the observations of the pool.
        logs = self._source.logs
        names = [log.name for log in logs]
        # A call that ran out of time is continued at the log that it did not reach.
        begin = names.index(self._resume) if self._resume in names else 0
        self._resume, total = "", 0
        for log in (*logs[begin:], *logs[:begin]):
            if time.monotonic() > until:
                self._resume = log.name
                break
            total += self._read(log, watched, until)
        self._count(self._fleet.members)
        return total

    def _expire(self) -> None:
        """Remove parts that are older than every possible booking, once per hour."""
        # The system clock, because the times of files are compared with it.
        now = time.time()
        if now - self._expired_at < 3_600:
            return
        self._expired_at = now
        for path in self._root.glob("*/*/*/*/*.parquet"):
            days = _KEEP_OUTCOMES_DAYS if path.parent.name == parts.OUTCOMES else _KEEP_DAYS
            if now - path.stat().st_mtime > days * 86_400:
                path.unlink(missing_ok=True)

    def notes(self) -> list[str]:
        """Return sentences about lost records and about logs that cannot be read."""
        logs = self._source.logs
        names = {log.name for log in logs}
        found = [
            f"the log of {member.name} is not within reach: its observations are not counted"
            for member in self._fleet.members
            if member.name not in names
        ]
        for log in logs:
            if not log.identities:
                found.append(f"the log of {log.name} holds nothing yet, or cannot be reached")
            found += self._progress(log).notes
        return [*found, *self._source.problems]

    def _read(self, log: RecordLog, watched: Collection[str], until: float) -> int:
        """Read the logs of a server from where the last call ended, each to its end before the next one."""
        progress, identities = self._progress(log), log.identities
        # A log without a segment, or one that is not mounted, keeps its cursor.
        at = identities.index(progress.log) if progress.log in identities else 0
        done = 0
        for identity in identities[at:]:
            if progress.log != identity:
                notes = progress.notes
                if progress.log:
                    notes += (f"the log of {log.name} was begun anew; what had been read is kept",)
                progress = LogProgress(identity, 0, notes)
            count, progress, is_read = self._read_log(log, progress, watched, until)
            done += count
            if not is_read:
                break
        return done

    def _read_log(
        self, log: RecordLog, progress: LogProgress, watched: Collection[str], until: float
    ) -> tuple[int, LogProgress, bool]:
        """Read one log; return the number of records, the progress, and whether its end was reached."""
        folder = self._root / log.name / progress.log[:12]
        parts.drop_from(folder, progress.next)
        done = 0
        unreadable = f"the log of {log.name} cannot be read: "
        try:
            entries = log.records(progress.log, progress.next)
            following = iter(entries)
            while batch := list(islice(following, self._batch)):
                progress = self._take(log, folder, progress, batch, watched)
                done += len(batch)
                if time.monotonic() > until:
                    break
        except (LogError, OSError) as error:
            progress = _without(progress, unreadable)
            self._keep(log, _noted(progress, f"{unreadable}{error}"))
            return done, progress, False
        # What could not be read before has been read now.
        progress = _without(progress, unreadable)
        for finding in entries.findings:
            if finding.severity == "error":
                lost = "" if finding.lost is None else f", records {finding.lost[0]} to {finding.lost[1]}"
                progress = _noted(progress, f"the log of {log.name} is damaged ({finding.kind}{lost})")
        self._keep(log, progress)
        return done, progress, not batch

    def _take(
        self,
        log: RecordLog,
        folder: Path,
        progress: LogProgress,
        batch: Sequence[Entry],
        watched: Collection[str],
    ) -> LogProgress:
        """Write the parts of a batch, the rollups, the cases, and then the cursor; then merge small parts.

        If the process is killed in between, the batch is repeated. The parts are then replaced by equal ones,
        the rollups have their own position in the log, and cases are unique by their decision.
        """
        first, last = batch[0].sequence, batch[-1].sequence
        if progress.next and first > progress.next:
            gone = f"records {progress.next} to {first - 1} of {log.name}'s log"
            progress = _noted(progress, f"{gone} were gone before they were read")
        kept: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        schemas: dict[tuple[str, str], pa.Schema] = {}
        counted = self._rollups.batch(log.name)
        for sequence, kind, record in batch:
            if kind == "decision":
                self._remembered.add(record)
                answer = rows.answer_row(sequence, record)
                counted.decision(record, answer)
                if record.checkpoint in watched:
                    place = record.checkpoint, parts.ANSWERS
                    kept[place].append(answer | {"features": rows.feature_bytes(record)})
                    schemas[place] = parts.ANSWERED
            elif kind == "observation":
                place = record.decision.checkpoint, record.decision.lane
                row = rows.observation_row(sequence, record, self._remembered, self._schemas)
                kept[place].append(row)
                schemas[place] = parts.OBSERVATIONS
                counted.observation(record, row)
            elif kind == "outcome":
                place = record.checkpoint, parts.OUTCOMES
                report = rows.outcome_row(sequence, record)
                kept[place].append(report)
                schemas[place] = parts.OUTCOME
                counted.outcome(record, report)
            elif kind == WITHDRAWN:
                if record.sequence < first:
                    lane = parts.OUTCOMES if record.kind else parts.ANSWERS
                    parts.withdraw(folder / record.checkpoint / lane, record.sequence)
                counted.withdrawn(record)
        for (checkpoint, lane), own in kept.items():
            schema = schemas[checkpoint, lane]
            if lane != parts.OUTCOMES:
                schema = parts.with_segments(schema, self._segments.add(checkpoint, own))
            parts.write(folder / checkpoint / lane, own, schema)
        self._rollups.apply(progress.log, first, last, counted)
        if self._cases is not None:
            self._cases(log.name, batch)
        progress = LogProgress(progress.log, last + 1, progress.notes)
        self._keep(log, progress)
        # Only records before the cursor are merged. A merged part that reached beyond it would hide the part
        # of a repeated batch, which starts in the middle of it and ends later.
        for checkpoint, lane in kept:
            parts.compact(folder / checkpoint / lane)
        return progress

    def _released(self) -> set[str]:
        """Return the checkpoints with a release in progress, whose answers are stored too."""
        query = select(changes.c.checkpoint).where(changes.c.state == ChangeState.RELEASED.value)
        with self._store.read() as connection:
            return {str(row[0]) for row in connection.execute(query)}

    def _progress(self, log: RecordLog) -> LogProgress:
        query = select(cursors.c.position).where(cursors.c.name == _cursor(log))
        with self._store.read() as connection:
            found = connection.execute(query).scalar()
        return (
            LogProgress(found["log"], found["next"], tuple(found["notes"])) if found else LogProgress("", 0)
        )

    def _keep(self, log: RecordLog, progress: LogProgress) -> None:
        if progress == self._progress(log):
            return
        name, values = {"name": _cursor(log)}, {"position": asdict(progress), "at": self._now()}
        self._store.transact(lambda connection: upsert(connection, cursors, name, **values))

    def _count(self, members: Sequence[Member]) -> None:
        """Append readings of the lanes' counters if they are new and the last reading is old enough."""
        at = micros(self._now())
        statuses = self._statuses.recent()
        for member in members:
            for one in statuses[member.name].observers:
                if not str(one.get("lane", "")).startswith("cr-"):
                    continue
                own = counter(one)
                if member.role != "live":
                    # Live servers took these requests and sent them to the pool; they must count only once.
                    own |= {"seen": 0, "left_out": 0, "taken": 0}
                file = self._root / member.name / "counters" / one["checkpoint"] / f"{one['lane']}.jsonl"
                text = json.dumps(own)
                before, said = self._counted.get(file, (0, ""))
                if text == said or at - before < _COUNTERS_EVERY_US:
                    continue
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("a") as out:
                    out.write(json.dumps({"at": at, **own}) + "\n")
                self._counted[file] = at, text


def counter(status: Any) -> dict[str, Any]:
    """Return an `ObserverStatus` as a line of counters."""
    own: dict[str, Any] = {
        name: int(status.get(name, 0) or 0)
        for name in ("seen", "left_out", "taken", "dropped", "shed", "unlogged", "evaluated")
    }
    failed = status.get("failed") or {}
    own["failed"] = sum(int(count) for count in failed.values())
    own["stuck"] = bool(status.get("stuck", False))
    return own


def _noted(progress: LogProgress, note: str) -> LogProgress:
    return progress if note in progress.notes else replace(progress, notes=(*progress.notes, note))


def _without(progress: LogProgress, begin: str) -> LogProgress:
    """Return the progress without the notes that begin like this."""
    return replace(progress, notes=tuple(note for note in progress.notes if not note.startswith(begin)))


def _cursor(log: RecordLog) -> str:
    return f"readout:{log.name}"
