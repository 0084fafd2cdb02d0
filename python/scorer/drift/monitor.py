"""The monitor: reads the logs of all servers from where it stopped, looks at each hour, and opens alerts.

`Monitor.read` takes batches of records; each batch and the position that it reaches are one transaction of
the state. `Monitor.look` judges every lane once for each hour that is over, and stores what it found with the
alerts in one transaction, so that a process that ends at any moment continues without a loss or a repetition.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, Protocol

import numpy as np

from scorer.drift.counting import DELAYS, HOUR_US, BatchCount, BundleFacts, CheckpointPlan
from scorer.drift.detection import GAP
from scorer.drift.looking import LaneLooks, as_document, look
from scorer.drift.quantities import LaneCounts, LaneName, lanes, load
from scorer.drift.settings import WEEK, DriftSettings
from scorer.drift.state import DriftState
from scorer.drift.trigger import OpenAlert, advance, tripped
from scorer.errors import LogError
from scorer.log.scanning import Entry

BATCH: Final = 5_000
"""Number of records of a transaction."""
_MOST_LOOKS: Final = 72
"""Hours that are looked at after the process was away; earlier ones are left out."""
_AHEAD_HOURS: Final = 24
_LANE_ENDS_HOURS: Final = 48
"""Hours without a decision after which a lane is not looked at any more."""


class MonitoredLog(Protocol):
    """What the monitor needs of a `scorer.log.source.records.RecordLog`."""

    @property
    def name(self) -> str:
        """Name of the server, the same in every run."""

    @property
    def identities(self) -> Sequence[str]:
        """Identities of the server's logs, oldest first."""

    def records(self, identity: str, start: int) -> Iterable[Entry]:
        """Begin a pass over one log at a sequence."""


@dataclass(frozen=True)
class DriftAlert:
    """An alert of a lane.

    Attributes:
        id: Number of the alert.
        checkpoint: Name of the checkpoint.
        lane: Name of the lane.
        opened: Time of the look that opened it.
        last: Time of the last look at which a quantity of it was shifted.
        quantities: Time at which each quantity was added.
        evidence: `causes` (one sentence for each quantity), `findings`, `slices` and `performance`.
    """

    id: int
    checkpoint: str
    lane: str
    opened: datetime
    last: datetime
    quantities: Mapping[str, datetime]
    evidence: Mapping[str, Any]

    @property
    def summary(self) -> str:
        """One sentence with the first causes."""
        causes = self.evidence.get("causes", [])
        more = f"; and {len(causes) - 3} more" if len(causes) > 3 else ""
        return f"{'; '.join(causes[:3])}{more}" if causes else ", ".join(self.quantities)


@dataclass(frozen=True)
class ReadResult:
    """The end of a call of `Monitor.read`.

    Attributes:
        records: Number of records that were read.
        is_complete: Whether all logs were read to their ends.
        problems: One line for each log that could not be read.
    """

    records: int
    is_complete: bool
    problems: tuple[str, ...]


class Monitor:
    """Counts records, looks and alerts.

    Args:
        state: The file of the state.
        logs: Returns the logs of the servers.
        plans: Returns the checkpoints that are monitored.
        bundles: Schemas and references of the bundles in the logs.
        settings: The settings.
        now: Returns the current time in microseconds since the Unix epoch.
        batch: Number of records of a transaction.
    """

    def __init__(
        self,
        state: DriftState,
        logs: Callable[[], Sequence[MonitoredLog]],
        plans: Callable[[], Mapping[str, CheckpointPlan]],
        bundles: BundleFacts,
        settings: DriftSettings,
        *,
        now: Callable[[], int],
        batch: int = BATCH,
    ) -> None:
        self.state, self._logs, self._plans = state, logs, plans
        self._bundles, self._settings = bundles, settings
        self._now, self._batch = now, batch
        self._resume = ""
        self._expired: int = 0

    def read(self, seconds: float = float("inf")) -> ReadResult:
        """Count the new records of all logs.

        Args:
            seconds: Time after which the call ends, approximately; the next call continues.

        Raises:
            LogError: The state cannot be written.
        """
        until = time.monotonic() + seconds
        logs = self._logs()
        names = [log.name for log in logs]
        begin = names.index(self._resume) if self._resume in names else 0
        self._resume, records, problems = "", 0, []
        for log in (*logs[begin:], *logs[:begin]):
            if time.monotonic() > until:
                self._resume = log.name
                break
            try:
                count, is_read = self._read(log, until)
            except (LogError, OSError) as error:
                if isinstance(error, LogError) and isinstance(error.__cause__, sqlite3.Error):
                    raise
                problems.append(f"the log of {log.name} cannot be read: {error}")
                continue
            records += count
            if not is_read:
                self._resume = log.name
                break
        return ReadResult(records, not self._resume, tuple(problems))

    def _read(self, log: MonitoredLog, until: float) -> tuple[int, bool]:
        identities = log.identities
        with self.state.reading() as connection:
            query = "SELECT identity, next FROM logs WHERE name = ?"
            known = None if connection is None else connection.execute(query, (log.name,)).fetchone()
        identity, following = known or ("", 0)
        # A log that is away keeps its position.
        begin = identities.index(identity) if identity in identities else 0
        records = 0
        for own in identities[begin:]:
            start = following if own == identity else 0
            entries = iter(log.records(own, start))
            while batch := list(islice(entries, self._batch)):
                with self.state.writing() as connection:
                    BatchCount(connection, self._plans(), self._bundles, self._settings).count(batch)
                    connection.execute(
                        "INSERT OR REPLACE INTO logs VALUES (?, ?, ?)",
                        (log.name, own, batch[-1].sequence + 1),
                    )
                records += len(batch)
                if time.monotonic() > until:
                    return records, False
        return records, True

    def look(self) -> list[DriftAlert]:
        """Judge every lane for the hours that are over; return the alerts that are new.

        Raises:
            LogError: The state cannot be read or written.
        """
        hour, plans = self._now() // HOUR_US, self._plans()
        with self.state.reading() as connection:
            known = [] if connection is None else lanes(connection)
        fresh = []
        for lane, since in known:
            if lane.checkpoint in plans:
                fresh += self._look(lane, since, hour, plans[lane.checkpoint])
        if hour - self._expired >= 24 and known:
            self._expire(hour)
            self._expired = hour
        return fresh

    def _look(self, lane: LaneName, since: int, hour: int, plan: CheckpointPlan) -> list[DriftAlert]:
        detection = self._settings.detection
        with self.state.writing() as connection:
            query = "SELECT next FROM looks WHERE checkpoint = ? AND lane = ?"
            place = lane.checkpoint, _lane_key(lane)
            row = connection.execute(query, place).fetchone()
            begin = max(since + 1 if row is None else row[0], hour - _MOST_LOOKS + 1)
            if begin > hour:
                return []
            hours = np.arange(begin - detection.of_looks + 1, hour + 1)
            counts = self._load(connection, lane, int(hours[0]), hour, plan)
            if counts is None or not _is_alive(counts):
                return []
            found = look(counts, hours, detection, self._reference(connection, lane, since, hour, plan))
            trips = tripped(found.shifted, detection.shifted_looks, detection.of_looks)
            alerts = self._alerts(connection, lane, found, trips, int(begin))
            connection.execute(
                "INSERT OR REPLACE INTO looks VALUES (?, ?, ?, ?)",
                (*place, hour + 1, json.dumps(as_document(found), allow_nan=False)),
            )
        return alerts

    def _load(
        self, connection: sqlite3.Connection, lane: LaneName, first: int, hour: int, plan: CheckpointPlan
    ) -> LaneCounts | None:
        own = self._settings.detection
        reach = GAP + own.history_days * 24 + own.weeks * WEEK + max(own.windows_hours)
        # Performance needs the first matured weeks of a bundle.
        begin = min(first - reach, hour - self._settings.keep_days * 24 // 2)
        return load(connection, lane, begin, hour, plan, self._bundles, own)

    def _reference(
        self, connection: sqlite3.Connection, lane: LaneName, since: int, hour: int, plan: CheckpointPlan
    ) -> LaneCounts | None:
        start = self._settings.reference_start
        begin = since
        if start:
            begin = int(datetime.fromisoformat(start).replace(tzinfo=UTC).timestamp()) // 3_600
        end = begin + 4 * WEEK
        if hour < end + WEEK:
            return None
        return load(connection, lane, begin, end, plan, self._bundles, self._settings.detection)

    def _alerts(
        self,
        connection: sqlite3.Connection,
        lane: LaneName,
        found: LaneLooks,
        trips: np.ndarray[Any, np.dtype[np.bool_]],
        begin: int,
    ) -> list[DriftAlert]:
        """Open and extend alerts in the order of the looks."""
        place = lane.checkpoint, _lane_key(lane)
        query = (
            "SELECT id, opened, last, quantities FROM alerts WHERE checkpoint = ? AND lane = ? "
            "ORDER BY id DESC LIMIT 1"
        )
        row = connection.execute(query, place).fetchone()
        number = None if row is None else row[0]
        alert = None if row is None else OpenAlert(row[1], row[2], json.loads(row[3]))
        opened = []
        for at, hour in enumerate(found.hours.tolist()):
            names = frozenset(found.titles[place] for place in np.flatnonzero(trips[at]).tolist())
            if hour < begin or not names:
                continue
            before = alert
            alert, is_new = advance(alert, hour, names, cool_down=self._settings.detection.cool_down_hours)
            if alert is None:
                continue
            values = (alert.opened, alert.last, json.dumps(alert.quantities))
            if is_new:
                evidence = json.dumps(_evidence(found, alert), allow_nan=False)
                number = connection.execute(
                    "INSERT INTO alerts (checkpoint, lane, opened, last, quantities, evidence) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    (*place, *values, evidence),
                ).lastrowid
                opened.append(number)
                continue
            connection.execute(
                "UPDATE alerts SET opened = ?, last = ?, quantities = ? WHERE id = ?", (*values, number)
            )
            if before is not None and before.quantities != alert.quantities:
                evidence = json.dumps(_evidence(found, alert), allow_nan=False)
                connection.execute("UPDATE alerts SET evidence = ? WHERE id = ?", (evidence, number))
        return [_alert(connection, one) for one in opened if one is not None]

    def untold(self) -> list[DriftAlert]:
        """Return the alerts that were not marked as told, oldest first, at most 100."""
        with self.state.reading() as connection:
            if connection is None:
                return []
            query = "SELECT id FROM alerts WHERE told = 0 ORDER BY id LIMIT 100"
            return [_alert(connection, row[0]) for row in connection.execute(query).fetchall()]

    def told(self, alert: int) -> None:
        """Mark an alert as told, after its messages were stored."""
        with self.state.writing() as connection:
            connection.execute("UPDATE alerts SET told = 1 WHERE id = ?", (alert,))

    def _expire(self, hour: int) -> None:
        kept = hour - self._settings.keep_days * 24
        with self.state.writing() as connection:
            query = "SELECT id FROM series"
            for (series,) in connection.execute(query).fetchall():
                for kind in "sofg":
                    connection.execute(
                        "DELETE FROM cells WHERE series = ? AND kind = ? AND (hour < ? OR hour > ?)",
                        (series, kind, kept, hour + _AHEAD_HOURS),
                    )
            connection.execute("DELETE FROM decisions WHERE at < ?", ((hour - DELAYS[-1] - 24) * HOUR_US,))


def alerts(state: DriftState, checkpoint: str = "", *, limit: int = 100) -> list[DriftAlert]:
    """Return the alerts of a checkpoint, or of all, newest first.

    Args:
        state: The file of the state.
        checkpoint: Name of the checkpoint; empty: all.
        limit: Greatest number of alerts.

    Raises:
        LogError: The state cannot be read.
    """
    with state.reading() as connection:
        if connection is None:
            return []
        query = "SELECT id FROM alerts WHERE checkpoint = ? OR ? = '' ORDER BY id DESC LIMIT ?"
        rows = connection.execute(query, (checkpoint, checkpoint, limit)).fetchall()
        return [_alert(connection, row[0]) for row in rows]


def alert_counts(state: DriftState) -> dict[tuple[str, str], int]:
    """Return the number of alerts of each lane, by checkpoint and lane.

    Raises:
        LogError: The state cannot be read.
    """
    with state.reading() as connection:
        if connection is None:
            return {}
        rows = connection.execute("SELECT checkpoint, lane, count(*) FROM alerts GROUP BY 1, 2").fetchall()
    return {(row[0], _lane_of(row[0], row[1]).lane): row[2] for row in rows}


def latest(state: DriftState, checkpoint: str = "") -> list[tuple[LaneName, Mapping[str, Any]]]:
    """Return the latest look of each lane of a checkpoint, or of all: hour, findings, performance, slices.

    Args:
        state: The file of the state.
        checkpoint: Name of the checkpoint; empty: all.

    Raises:
        LogError: The state cannot be read.
    """
    with state.reading() as connection:
        if connection is None:
            return []
        query = "SELECT checkpoint, lane, findings FROM looks WHERE checkpoint = ? OR ? = '' ORDER BY 1, 2"
        rows = connection.execute(query, (checkpoint, checkpoint)).fetchall()
    return [(_lane_of(row[0], row[1]), json.loads(row[2])) for row in rows]


def moment(hour: int) -> datetime:
    """Return the time of an hour since the Unix epoch."""
    return datetime.fromtimestamp(hour * 3_600, UTC)


def _evidence(found: LaneLooks, alert: OpenAlert) -> dict[str, Any]:
    document = as_document(found)
    own = [one for one in document["findings"] if one["quantity"] in alert.quantities]
    own.sort(key=lambda one: -(one["psi"] or 0) / (one["threshold"] or 1))
    causes = [one["cause"] for one in own]
    causes += [name for name in ("auc", "calibration") if name in alert.quantities]
    return {**document, "findings": own, "causes": causes}


def _alert(connection: sqlite3.Connection, number: int) -> DriftAlert:
    query = "SELECT id, checkpoint, lane, opened, last, quantities, evidence FROM alerts WHERE id = ?"
    row = connection.execute(query, (number,)).fetchone()
    lane = _lane_of(row[1], row[2])
    return DriftAlert(
        row[0],
        lane.checkpoint,
        lane.lane,
        moment(row[3]),
        moment(row[4]),
        {name: moment(hour) for name, hour in json.loads(row[5]).items()},
        json.loads(row[6]),
    )


def _lane_key(lane: LaneName) -> str:
    return f"{lane.role}:{lane.lane}"


def _lane_of(checkpoint: str, key: str) -> LaneName:
    role, _, lane = key.partition(":")
    return LaneName(checkpoint, lane, role)


def _is_alive(counts: LaneCounts) -> bool:
    for group in counts.groups:
        if group.kind == "decision":
            return bool(group.counts[-_LANE_ENDS_HOURS:].any())
    return False
