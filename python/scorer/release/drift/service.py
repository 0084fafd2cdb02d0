"""Drift of the platform's checkpoints, as the service layer returns and reports it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from scorer.drift.counting import HOUR_US, BundleFacts, CheckpointPlan
from scorer.drift.history import history
from scorer.drift.monitor import DriftAlert, Monitor, alert_counts, alerts, latest, moment
from scorer.drift.quantities import LaneName
from scorer.drift.state import DriftState
from scorer.errors import LogError
from scorer.release.drift import figures
from scorer.release.drift_answers import (
    CheckpointDrift,
    DriftAlertView,
    DriftHistory,
    DriftLane,
    DriftPerformance,
    DriftQuantity,
    DriftSegment,
)
from scorer.release.errors import InvalidError, NotFoundError, UnreachableError
from scorer.release.model import PLATFORM, Actor, Severity
from scorer.release.store import Store, micros
from scorer.release.store import tables as t

if TYPE_CHECKING:
    from scorer.events import EventLog
    from scorer.log.source.records import RecordSource
    from scorer.release.access import Access
    from scorer.release.audit import Audit
    from scorer.release.bundles import Bundles
    from scorer.release.notify import Notifications
    from scorer.release.settings import PlatformFile

_SECONDS: Final = 1.0
_EVERY_SECONDS: Final = 10.0
_MOST_ALERTS: Final = 50
_DAYS: Final = 30
MOST_DAYS: Final = 90


class DriftWatch:
    """Counts the records of the fleet's logs, looks at each hour, and reports alerts.

    Args:
        settings: The checkpoints, their outcomes, `[drift]` and the data directory.
        store: The database of projects and messages.
        access: Decides which checkpoints an actor may see.
        audit: The audit log.
        notifications: Sends to the projects' channels.
        source: The logs of the servers.
        bundles: Schemas and references.
        now: Returns the current time, aware and in UTC.
        events: The platform's event log.
    """

    def __init__(
        self,
        settings: PlatformFile,
        store: Store,
        access: Access,
        audit: Audit,
        notifications: Notifications,
        source: RecordSource,
        bundles: Bundles,
        *,
        now: Callable[[], datetime],
        events: EventLog,
    ) -> None:
        self._settings, self._store, self._access = settings, store, access
        self._audit, self._notifications, self._events = audit, notifications, events
        self._now = now
        self._facts = BundleFacts(bundles.local)
        self._monitor = Monitor(
            DriftState(settings.platform.data_dir / "drift.sqlite"),
            lambda: source.logs,
            self._plans,
            self._facts,
            settings.drift,
            now=lambda: micros(now()),
        )
        self._problems: tuple[str, ...] = ()
        self._due = 0.0
        # The ticker and requests of pages use one object.
        self._lock = threading.Lock()

    def tick(self) -> None:
        """Check, but at most every ten seconds once all records are read.

        Raises:
            LogError: The state cannot be used.
        """
        if self._settings.drift.enabled and time.monotonic() >= self._due:
            self.check()

    def check(self) -> None:
        """Read new records for a second, look once all are read, and report new alerts.

        Raises:
            LogError: The state cannot be used.
        """
        with self._lock:
            self._due = time.monotonic() + _EVERY_SECONDS
            result = self._monitor.read(_SECONDS)
            if not result.is_complete:
                self._due = 0.0
            self._problems = result.problems
            if result.is_complete:
                self._monitor.look()
            for alert in self._monitor.untold():
                self._report(alert)
                self._monitor.told(alert.id)

    def close(self) -> None:
        """Close the file of the state."""
        with self._lock:
            self._monitor.state.close()

    def drift(self, actor: Actor, checkpoint: str) -> CheckpointDrift:
        """Return the latest look of each lane of a checkpoint, and its alerts.

        Raises:
            NotFoundError: There is no such checkpoint, or the actor may not see it.
            UnreachableError: The state cannot be read.
        """
        self._require(actor, checkpoint)
        try:
            looks = latest(self._monitor.state, checkpoint)
            found = alerts(self._monitor.state, checkpoint, limit=_MOST_ALERTS)
        except LogError as error:
            raise UnreachableError(str(error)) from error
        notes = list(self._problems)
        if not self._settings.drift.enabled:
            notes.append("Drift is not monitored; set [drift] enabled = true in platform.toml.")
        elif not looks:
            notes.append(
                "No hour was looked at yet. The first look follows the first full hour of decisions."
            )
        return CheckpointDrift(
            checkpoint,
            tuple(_lane(lane, content) for lane, content in looks),
            tuple(_view(one) for one in found),
            tuple(notes),
        )

    def history(
        self, actor: Actor, checkpoint: str, *, lane: str = "", quantity: str = "", days: int = _DAYS
    ) -> DriftHistory:
        """Return the quantities of a lane on each of the last days.

        Args:
            actor: The calling user.
            checkpoint: Name of the checkpoint.
            lane: Name of the lane; empty: the answer lane with the most rows at its latest look.
            quantity: Name of the quantity; empty: the one that is nearest to its threshold.
            days: Number of days.

        Raises:
            NotFoundError: There is no such checkpoint, or the actor may not see it; or there is no such lane.
            InvalidError: The number of days is not valid, or there is no such quantity.
            UnreachableError: The state cannot be read.
        """
        self._require(actor, checkpoint)
        if not 1 <= days <= MOST_DAYS:
            raise InvalidError(f"days is {days}; give 1 to {MOST_DAYS}")
        try:
            looks = latest(self._monitor.state, checkpoint)
            chosen = _chosen(looks, lane, checkpoint)
            found = history(
                self._monitor.state,
                chosen,
                self._plans()[checkpoint],
                self._facts,
                self._settings.drift,
                end=micros(self._now()) // HOUR_US,
                days=days,
            )
        except LogError as error:
            raise UnreachableError(str(error)) from error
        if found is None:
            raise NotFoundError(f'nothing was counted of lane "{chosen.lane}" in the last {days} days')
        if quantity and quantity not in found.titles:
            raise InvalidError(
                f'there is no quantity "{quantity[:80]}"; there are {", ".join(found.titles[:10])}, ...'
            )
        shown = quantity or _nearest(looks, chosen, found.titles)
        return DriftHistory(
            checkpoint,
            chosen.lane,
            chosen.role,
            shown,
            found.titles,
            (figures.overview(found), figures.course(found, shown), figures.shares(found, shown)),
        )

    def counts(self) -> Mapping[tuple[str, str], tuple[int, int]]:
        """Return the number of alerts, and of shifted quantities now, by checkpoint and lane."""
        try:
            looks, every = latest(self._monitor.state), alert_counts(self._monitor.state)
        except LogError:
            return {}
        return {
            (lane.checkpoint, lane.lane): (
                every.get((lane.checkpoint, lane.lane), 0),
                sum(one["shifted"] for one in content["findings"]),
            )
            for lane, content in looks
        }

    def _require(self, actor: Actor, checkpoint: str) -> None:
        if checkpoint not in self._access.checkpoints(actor, tuple(self._settings.checkpoints)):
            raise NotFoundError(
                f'there is no checkpoint "{checkpoint}" that you may see; the page of checkpoints lists '
                "those that you may see"
            )

    def _plans(self) -> Mapping[str, CheckpointPlan]:
        kinds = ("score", "action")
        # A copy, since checkpoints are added while the platform runs.
        return {
            name: CheckpointPlan(
                {kind: own.outcome_of(kind) for kind in kinds},
                own.unproven == "include",
                self._settings.drift.segments,
                {kind: own.matures(kind).total_seconds() / 3_600 for kind in kinds},
            )
            for name, own in dict(self._settings.checkpoints).items()
        }

    def _report(self, alert: DriftAlert) -> None:
        """Write the audit entry, the event and the messages of an alert; a repetition sends none twice."""
        details: dict[str, Any] = {
            "alert": alert.id,
            "lane": alert.lane,
            "opened": alert.opened.isoformat(),
            "quantities": sorted(alert.quantities),
            "causes": list(alert.evidence.get("causes", []))[:20],
            "segments": [one["name"] for one in alert.evidence.get("slices", [])],
        }
        with self._store.write() as connection:
            self._audit.append(connection, PLATFORM, "drift.alert", alert.checkpoint, details=details)
            query = select(t.projects.c.name, t.projects.c.checkpoints)
            for row in connection.execute(query).all():
                if row.checkpoints and alert.checkpoint not in row.checkpoints:
                    continue
                self._notifications.tell(
                    connection,
                    row.name,
                    Severity.WARNING,
                    f"drift at {alert.checkpoint}, lane {alert.lane}",
                    f"{alert.summary}. Nothing was changed; the page Drift of the checkpoint has figures.",
                    checkpoint=alert.checkpoint,
                    payload={"checkpoint": alert.checkpoint, **details},
                    key=f"drift:{alert.checkpoint}:{alert.lane}:{alert.opened.isoformat()}",
                )
        self._events.warning(
            "drift_alert", checkpoint=alert.checkpoint, lane=alert.lane, alert=alert.id, cause=alert.summary
        )


def _chosen(looks: list[tuple[LaneName, Mapping[str, Any]]], lane: str, checkpoint: str) -> LaneName:
    known = [(one, content) for one, content in looks if not lane or one.lane == lane]
    if not known:
        names = ", ".join(sorted({one.lane for one, _ in looks})) or "none yet"
        raise NotFoundError(f'no lane "{lane[:80]}" of {checkpoint} was looked at; there are {names}')
    return max(
        known,
        key=lambda one: (
            one[0].role == "answer",
            max((item["rows"] for item in one[1]["findings"]), default=0),
        ),
    )[0]


def _nearest(
    looks: list[tuple[LaneName, Mapping[str, Any]]], chosen: LaneName, titles: tuple[str, ...]
) -> str:
    content = next(content for lane, content in looks if lane == chosen)
    near = {
        one["quantity"]: (one["psi"] or 0.0) / max(one["threshold"] or 1.0, 1e-12)
        for one in content["findings"]
        if one["judged"]
    }
    return max(titles, key=lambda title: near.get(title, -1.0))


def _lane(lane: LaneName, content: Mapping[str, Any]) -> DriftLane:
    names = DriftQuantity.__dataclass_fields__
    own = content["performance"]
    return DriftLane(
        lane.lane,
        lane.role,
        moment(content["hour"]),
        tuple(
            DriftQuantity(**{key: one[key] for key in names})
            for one in sorted(content["findings"], key=_distance)
        ),
        _segments(content),
        None if own is None else DriftPerformance(**{**own, "shifted": tuple(own["shifted"])}),
    )


def _distance(one: Mapping[str, Any]) -> tuple[bool, float]:
    return (not one["shifted"], -(one["psi"] or 0.0) / max(one["threshold"] or 1.0, 1e-12))


def _segments(content: Mapping[str, Any]) -> tuple[DriftSegment, ...]:
    names = DriftSegment.__dataclass_fields__
    return tuple(DriftSegment(**{key: one[key] for key in names}) for one in content.get("slices", []))


def _view(alert: DriftAlert) -> DriftAlertView:
    return DriftAlertView(
        alert.id,
        alert.lane,
        alert.opened,
        alert.last,
        tuple(alert.quantities),
        alert.summary,
        tuple(alert.evidence.get("causes", [])),
        _segments(alert.evidence),
    )
