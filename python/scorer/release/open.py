"""Assembly of the platform: database, fleet, service layer and the threads that run the pipeline."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from scorer.config.identity import client_tls
from scorer.errors import ScorerError
from scorer.events import EventLog
from scorer.release.access import Access
from scorer.release.additions import Additions
from scorer.release.adoption.service import AdoptionAnalyses
from scorer.release.agents import AgentTools
from scorer.release.audit import Audit
from scorer.release.authoring import RuleAuthoring, RuleHistories
from scorer.release.backtest.running import Backtests
from scorer.release.builds import Builds
from scorer.release.bundles import Bundles
from scorer.release.calendar import Calendar
from scorer.release.cards.card import Cards
from scorer.release.cards.documents import Documents
from scorer.release.changes.control import Control
from scorer.release.changes.discussion import Discussion
from scorer.release.changes.operations import Changes
from scorer.release.changes.parts import Parts
from scorer.release.changes.pipeline import Pipeline
from scorer.release.changes.runner import Runner
from scorer.release.checkpoints import Checkpoints
from scorer.release.decisions import Decisions
from scorer.release.drift import DriftWatch
from scorer.release.fleet import Fleet, Member, Statuses
from scorer.release.fleet.discovery import Discovery
from scorer.release.fleet.finders import finder_of
from scorer.release.fleet.logs import record_source, table_access
from scorer.release.fleet.outcomes import OutcomeCalls
from scorer.release.lanes import recorded
from scorer.release.lanes.alerts import Alerts, drift_of
from scorer.release.lanes.reconcile import Reconciler
from scorer.release.loaded import BundlesInMemory
from scorer.release.notify import Notifications
from scorer.release.notify.addresses import Destinations
from scorer.release.permissions import Permissions
from scorer.release.readout import Readouts
from scorer.release.readout.schemas import Schemas
from scorer.release.reviews import Reviews
from scorer.release.reviews.clock import ReviewClock
from scorer.release.reviews.intake import CaseIntake
from scorer.release.reviews.outbox import OutcomeOutbox, OutcomeReporter
from scorer.release.service import Service
from scorer.release.store import Store, utcnow
from scorer.release.store.leader import Leader
from scorer.release.timeseries import MetricsOverTime
from scorer.release.trying import Trying
from scorer.release.versions import Comparisons, Versions
from scorer.release.weekly.service import WeeklyComparisons

if TYPE_CHECKING:
    from typing import Any

    from scorer.registry import RegistryBackend
    from scorer.release.settings import PlatformFile

_LEASE_SECONDS = 15.0
_STOP_SECONDS = 10.0


class PlatformServices:
    """The platform in this process. All durable state is in the database and the data directory.

    Args:
        settings: The settings.
        store: The database.
        fleet: The servers that the platform manages.
        registry: The registry of bundles.
        service: The operations of the platform.
        runner: Advances change requests.
        backtests: Runs backtests in processes, which end with the platform.
        discovery: Finds servers by name or in Kubernetes.
        events: The platform's event log.
        now: Returns the current time, aware and in UTC.
    """

    def __init__(
        self,
        settings: PlatformFile,
        store: Store,
        fleet: Fleet,
        registry: RegistryBackend,
        service: Service,
        *,
        runner: Runner,
        backtests: Backtests | None = None,
        discovery: Discovery | None = None,
        events: EventLog | None = None,
        now: Callable[[], datetime] = utcnow,
    ) -> None:
        self.settings = settings
        self.store = store
        self.fleet = fleet
        self.registry = registry
        self.service = service
        self.runner = runner
        self._backtests = backtests
        self._discovery = discovery or Discovery({})
        self.leads = False
        """Whether this process is the leader, which advances change requests."""
        self.stopping = False
        """Set before the process stops, so that waiting requests return."""
        self._events = events or EventLog()
        holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._leader = Leader(store, holder, seconds=_LEASE_SECONDS, now=now)
        self._renewed: float | None = None
        self._renewing = threading.Lock()
        self._wake = threading.Event()
        self._threads: list[threading.Thread] = []

    def tick(self) -> None:
        """Run one round: read new log records, advance change requests, and bring the servers in sync.

        Raises:
            ExceptionGroup: Parts of the round failed. The other parts have run.
        """
        self._round((("collect", self.service.readouts.collect), ("run", self.runner.tick)))

    def collect(self) -> None:
        """Read the records that are new in logs and tables."""
        self._round((("collect", self.service.readouts.collect),))

    def advance(self) -> None:
        """Advance change requests, and bring the servers in sync."""
        self._round((("run", self.runner.tick),))

    def start(self) -> None:
        """Start the threads of the ticker, the messages and the builds, which run independently."""
        self._discovery.start()
        rounds: tuple[tuple[str, Callable[[], None]], ...] = (("pipeline", self.tick),)
        if self.settings.tables.urls:
            # A storage that does not answer must not delay a rollback.
            rounds = (("records", self.collect), ("pipeline", self.advance))
        for name, work in (
            *rounds,
            ("messages", self.deliver),
            ("reviews", self.review),
            ("drift", self.watch_drift),
            # Every process compares and builds what it has received, and sees what others have added.
            ("comparisons", self.service.weekly.tick),
            ("adoption", self.service.adoption.tick),
            ("builds", self.service.builds.tick),
            ("additions", self.service.additions.refresh),
        ):
            thread = threading.Thread(
                target=self._loop, args=(name, work), name=f"platform-{name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def deliver(self) -> None:
        """Send the messages that are due."""
        self._round((("deliver", self.service.notifications.deliver),))

    def watch_drift(self) -> None:
        """Count the new records of the logs for drift, and report alerts."""
        self._round((("drift", self.service.drift.tick),))

    def review(self) -> None:
        """Report overdue reviews, and report the outcomes of decided ones to the servers."""
        reviews = self.service.reviews
        self._round((("watch", reviews.watch), ("report outcomes", reviews.deliver)))

    def stop(self) -> None:
        """Stop the threads. A step in progress completes, or the next leader repeats it."""
        self.stopping = True
        self._wake.set()
        self._discovery.stop()
        for thread in self._threads:
            thread.join(_STOP_SECONDS)
        self._threads.clear()

    def close(self) -> None:
        """Stop the threads, and close the connections and the database."""
        self.stop()
        if self._backtests is not None:
            self._backtests.close()
        self.service.builds.close()
        self.service.weekly.close()
        self.service.adoption.close()
        self.service.notifications.close()
        self.service.reviews.close()
        self.service.metrics.close()
        self.service.drift.close()
        self.service.decisions.close()
        if self.leads:
            try:
                self._leader.resign()
            except ScorerError as error:
                self._events.warning("not_resigned", error=str(error))
            self.leads = False
        self.fleet.close()
        self.registry.close()
        self.store.close()

    def metrics(self) -> list[str]:
        """Return the platform's metrics as lines of the Prometheus text format."""
        statuses = self.service.checkpoints.reachable()
        with self.store.read() as connection:
            broken = recorded.count(connection, recorded.BREAK_GLASS)
            drifts = {name: bool(drift_of(connection, name)) for name in self.settings.checkpoints}
        own = self.settings.checkpoints
        failing = self._discovery.errors()
        reviews = self.service.reviews.counts()
        drifting = self.service.drift.counts()
        return [
            "# HELP scorer_platform_leads Whether this process leads and advances change requests.",
            "# TYPE scorer_platform_leads gauge",
            f"scorer_platform_leads {int(self.leads)}",
            "# HELP scorer_platform_server_reachable Whether a server of the fleet responds.",
            "# TYPE scorer_platform_server_reachable gauge",
            *(
                f'scorer_platform_server_reachable{{server="{name}"}} {int(up)}'
                for name, up in statuses.items()
            ),
            "# HELP scorer_platform_discovery_failing Whether the servers of a group cannot be found now.",
            "# TYPE scorer_platform_discovery_failing gauge",
            *(
                f'scorer_platform_discovery_failing{{group="{group.name}"}} {int(group.name in failing)}'
                for group in self.settings.discovery
            ),
            "# HELP scorer_platform_alias_drift Whether a managed alias was moved outside the platform.",
            "# TYPE scorer_platform_alias_drift gauge",
            *(f'scorer_platform_alias_drift{{checkpoint="{name}"}} {int(drifts[name])}' for name in own),
            "# HELP scorer_platform_drift_alerts_total Alerts of drift of a lane.",
            "# TYPE scorer_platform_drift_alerts_total counter",
            *(
                f'scorer_platform_drift_alerts_total{{checkpoint="{name}",lane="{lane}"}} {count}'
                for (name, lane), (count, _) in drifting.items()
            ),
            "# HELP scorer_platform_drift_shifted Quantities of a lane that were shifted at the latest look.",
            "# TYPE scorer_platform_drift_shifted gauge",
            *(
                f'scorer_platform_drift_shifted{{checkpoint="{name}",lane="{lane}"}} {shifted}'
                for (name, lane), (_, shifted) in drifting.items()
            ),
            "# HELP scorer_platform_break_glass_total Changes of managed checkpoints with --break-glass.",
            "# TYPE scorer_platform_break_glass_total counter",
            *(
                f'scorer_platform_break_glass_total{{checkpoint="{name}"}} {broken.get(name, 0)}'
                for name in own
            ),
            "# HELP scorer_platform_messages_failed_total Attempts to send a notification that failed.",
            "# TYPE scorer_platform_messages_failed_total counter",
            f"scorer_platform_messages_failed_total {self.service.notifications.failed}",
            "# HELP scorer_platform_reviews Cases of the review queue: open, overdue (a part of open), and "
            "decided ones whose outcome no server has recorded yet.",
            "# TYPE scorer_platform_reviews gauge",
            *(
                f'scorer_platform_reviews{{checkpoint="{one.checkpoint}",state="{state}"}} {count}'
                for one in reviews
                for state, count in (
                    ("open", one.open),
                    ("overdue", one.overdue),
                    ("undelivered", one.waiting),
                )
            ),
            "# HELP scorer_platform_review_outcomes_failed_total Attempts to report an outcome that failed.",
            "# TYPE scorer_platform_review_outcomes_failed_total counter",
            f"scorer_platform_review_outcomes_failed_total {self.service.reviews.failed}",
            *self.service.agents.metrics(),
        ]

    def _round(self, parts: tuple[tuple[str, Callable[[], Any]], ...]) -> None:
        if not self._is_leader():
            return
        failed = []
        for name, part in parts:
            try:
                part()
            except Exception as error:
                error.add_note(f"in {name}")
                failed.append(error)
        if failed:
            raise ExceptionGroup("a round of the platform failed in part", failed)

    def _is_leader(self) -> bool:
        # The threads of the pipeline and of the messages call this method concurrently.
        with self._renewing:
            now = time.monotonic()
            if self._renewed is None or now - self._renewed > _LEASE_SECONDS / 3:
                before, self.leads = self.leads, self._leader.lead()
                self._renewed = now
                if self.leads != before:
                    self._events.info("leads" if self.leads else "follows")
            return self.leads

    def _loop(self, name: str, work: Callable[[], None]) -> None:
        pause = self.settings.platform.tick_ms / 1000
        reported: set[str] = set()
        while not self.stopping:
            try:
                work()
                reported.clear()
            except Exception as error:
                for one in error.exceptions if isinstance(error, ExceptionGroup) else (error,):
                    self._report(name, one, reported)
            self._wake.wait(pause)

    def _report(self, name: str, error: Exception, reported: set[str]) -> None:
        """Log an error once for as long as it stays the same."""
        text = f"{type(error).__name__}: {error}"
        if text in reported:
            return
        reported.add(text)
        if isinstance(error, ScorerError):
            self._events.warning("round_failed", part=name, error=str(error))
        else:
            self._events.defect("round_failed", error, part=name)


def open_service(
    settings: PlatformFile,
    *,
    now: Callable[[], datetime] = utcnow,
    fleet: Fleet | None = None,
    outcomes: OutcomeReporter | None = None,
    events: EventLog | None = None,
) -> PlatformServices:
    """Open the database, upgrade it if needed, and assemble the platform.

    Args:
        settings: The settings.
        now: Returns the current time, aware and in UTC.
        fleet: Replaces the settings' servers in tests.
        outcomes: Replaces the calls to their scoring services in tests.
        events: The platform's event log; None: stderr.

    Raises:
        ScorerError: The database or the data directory cannot be used.
    """
    from scorer.registry import open_registry

    own = settings.platform
    registry = open_registry(own.registry)
    store = Store(own.database)
    events = events or EventLog()
    fleet = fleet or Fleet(
        [Member(one.name, one.control, one.role, one.log) for one in settings.fleet],
        platform=own.name,
        tls=client_tls(settings.fleet_tls),
    )
    audit = Audit(store, now=now)
    access = Access(store, audit, now=now, session_hours=own.session_hours)
    destinations = Destinations(tuple(own.notification_networks))
    notifications = Notifications(store, access, audit, now=now, destinations=destinations, events=events)
    bundles = Bundles(
        store,
        access,
        audit,
        registry,
        data_dir=own.data_dir,
        upload_bytes=own.upload_mb << 20,
        now=now,
        events=events,
        trusted_keys=own.trusted_keys,
    )
    calendar = Calendar(store, settings, audit, now=now)
    # Pages use the statuses that the pipeline has read within the last four ticks.
    statuses = Statuses(fleet, max_age=4 * own.tick_ms / 1000)
    discovery = Discovery({group.name: (group, finder_of(group)) for group in settings.discovery}, events)
    additions = Additions(
        settings,
        store,
        fleet,
        audit,
        statuses=statuses,
        discovered=discovery.servers,
        now=now,
        events=events,
    )
    additions.refresh()
    source = record_source(settings, fleet)
    metrics = MetricsOverTime(settings, store, access, fleet, source, bundles, now=now)
    intake = CaseIntake(settings, store, Schemas(bundles.local).features, now=now)
    readouts = Readouts(
        settings,
        store,
        access,
        fleet,
        source,
        bundles,
        rollups=metrics.ledger,
        cases=intake.take,
        statuses=statuses,
        now=now,
    )
    alerts = Alerts(audit, notifications, events, now=now)
    reconciler = Reconciler(
        store, settings, fleet, registry, audit, now=now, statuses=statuses, alerts=alerts
    )
    access_of_tables = table_access(settings)
    backtests = Backtests(
        own.data_dir / "backtests",
        environment=None if access_of_tables is None else access_of_tables.variables(),
    )
    permissions = Permissions(store, access, audit, calendar, now=now)
    parts = Parts(
        store=store,
        settings=settings,
        access=access,
        audit=audit,
        notifications=notifications,
        bundles=bundles,
        calendar=calendar,
        reconciler=reconciler,
        permissions=permissions,
        readouts=readouts,
        backtests=backtests,
        events=events,
        now=now,
    )
    changes = Changes(parts)
    reviews = Reviews(
        settings,
        store,
        access,
        audit,
        clock=ReviewClock(settings, store, notifications, events, now=now),
        outbox=OutcomeOutbox(
            settings, store, outcomes or OutcomeCalls(client_tls(settings.fleet_tls)), now=now
        ),
        now=now,
    )
    documents = Documents(parts)
    decisions = Decisions(source, access, bundles, settings, outcomes=readouts.outcomes)
    loaded = BundlesInMemory(bundles)
    service = Service(
        access=access,
        agents=AgentTools(settings, store, audit),
        adoption=AdoptionAnalyses(parts),
        additions=additions,
        audit=audit,
        authoring=RuleAuthoring(parts, changes, decisions, loaded),
        builds=Builds(settings, store, access, audit, bundles, now=now, events=events),
        bundles=bundles,
        checkpoints=Checkpoints(parts, changes),
        calendar=calendar,
        cards=Cards(parts, documents, changes),
        changes=changes,
        decisions=decisions,
        documents=documents,
        drift=DriftWatch(
            settings, store, access, audit, notifications, source, bundles, now=now, events=events
        ),
        metrics=metrics,
        notifications=notifications,
        permissions=permissions,
        readouts=readouts,
        reviews=reviews,
        rule_histories=RuleHistories(parts, metrics),
        versions=Versions(parts),
        weekly=WeeklyComparisons(parts, None if access_of_tables is None else access_of_tables.variables()),
        comparisons=Comparisons(parts, changes),
        trying=Trying(store, settings, calendar, bundles, loaded),
        control=Control(parts, changes),
        discussion=Discussion(parts),
    )
    # Whether this process is the leader is determined once per round.
    runner = Runner(parts, Pipeline(parts, changes))
    return PlatformServices(
        settings,
        store,
        fleet,
        registry,
        service,
        runner=runner,
        backtests=backtests,
        discovery=discovery,
        events=events,
        now=now,
    )
