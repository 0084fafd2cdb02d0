"""A review queue with a real store, people and audit log, records that tests make, and servers in memory.

::

    queue = Queue(store)
    queue.take(queue.decision("a"))                    # the platform reads a decision from a log
    queue.reviews.decide(queue.mia, 1, decline())
    queue.reviews.deliver()
    queue.servers.recorded[FRAUD, "a", "review"]       # {0: 1.0}
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from scorer.bundle.models import Feature
from scorer.events import EventLog
from scorer.log.scanning import Entry
from scorer.release.access import Access
from scorer.release.audit import Audit
from scorer.release.errors import ConflictError, UnreachableError
from scorer.release.fleet.outcomes import ScoringAddress
from scorer.release.model import Actor, Role, Severity
from scorer.release.notify import Notifications
from scorer.release.notify.addresses import Destinations
from scorer.release.requests import CaseFilter, DecideCase
from scorer.release.review_answers import ReviewCase
from scorer.release.reviews import Reviews
from scorer.release.reviews.clock import ReviewClock
from scorer.release.reviews.intake import CaseIntake
from scorer.release.reviews.outbox import OutcomeOutbox
from scorer.release.settings import PlatformFile
from scorer.release.store import Store, micros
from scorer.v1 import scoring_pb2 as pb
from scorer.v1.log_pb2 import DecisionRecord, WithdrawnRecord

FRAUD, OTHER = "fraud.checkout", "fraud.refund"
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
FEATURES = (Feature(name="age"), Feature(name="amount"))
SETTINGS = """
[[fleet]]
name = "live-1"
control = "127.0.0.1:1"
scoring = "127.0.0.1:11"
[[fleet]]
name = "live-2"
control = "127.0.0.1:2"
scoring = "127.0.0.1:12"
[checkpoints."fraud.checkout"]
alias = "fraud-checkout@live"
[checkpoints."fraud.checkout".review]
project = "fraud"
open_days = 10.0
keep_days = 20.0
[checkpoints."fraud.refund"]
alias = "fraud-refund@live"
[checkpoints."fraud.refund".review]
project = "other"
role = "viewer"
label = "look"
outcome = "refund_review"
sla_minutes = 5.0
[checkpoints."action.authorise"]
alias = "action-authorise@live"
"""
PEOPLE = {"vera": Role.VIEWER, "mia": Role.MODELER, "max": Role.MODELER, "otto": Role.OWNER}


class FakeServers:
    """Records outcomes as servers do: once per revision, with a conflict for another value.

    Attributes:
        recorded: Values by revision, by checkpoint, decision id and kind; shared by all servers, as the join
            of their logs is.
        calls: Names of the servers that were called.
        requests: The outcomes that were recorded or repeated.
        away: Servers that do not respond.
    """

    def __init__(self) -> None:
        self.recorded: dict[tuple[str, str, str], dict[int, float]] = {}
        self.calls: list[str] = []
        self.requests: list[pb.ReportOutcomeRequest] = []
        self.away: set[str] = set()
        self.lose = 0
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    def report(self, to: ScoringAddress, request: pb.ReportOutcomeRequest) -> pb.ReportOutcomeResponse:
        self.before()
        self.calls.append(to.name)
        if to.name in self.away:
            raise UnreachableError(f'server "{to.name}" does not respond')
        known = self.recorded.setdefault((request.checkpoint, request.decision_id, request.kind), {})
        first = known.setdefault(request.revision, request.value)
        if first != request.value:
            raise ConflictError(f'server "{to.name}": revision {request.revision} has another value')
        self.requests.append(request)
        self.after()
        if self.lose:
            self.lose -= 1
            raise UnreachableError(f'server "{to.name}" has not responded within 5 s')
        return pb.ReportOutcomeResponse(
            decision_known=True, proven=True, superseded=request.revision < max(known)
        )

    def close(self) -> None:
        pass

    def value(self, decision_id: str, kind: str = "review", checkpoint: str = FRAUD) -> float:
        """Return the value in force: that of the highest revision."""
        known = self.recorded[checkpoint, decision_id, kind]
        return known[max(known)]


class Queue:
    """The review queue of project fraud at `fraud.checkout`, and of project other at `fraud.refund`."""

    def __init__(self, store: Store, settings: str = SETTINGS) -> None:
        self.store = store
        self.settings = PlatformFile.parse(settings, base=Path("/nowhere"))
        self.time = NOON
        self.servers = FakeServers()
        self.sequence = 0
        self.events = io.BytesIO()
        self.audit = Audit(store, now=self.now)
        self.access = Access(store, self.audit, now=self.now)
        self.open()
        self.admin = self.access.local("admin")
        for project in ("fraud", "other"):
            self.access.create_project(self.admin, project, project.title())
        for user, role in PEOPLE.items():
            self.access.set_member(self.admin, "fraud", user, role)
        self.access.set_member(self.admin, "other", "olga", Role.VIEWER)
        self.vera, self.mia, self.max, self.otto = (
            Actor(user, {"fraud": role}, via="token") for user, role in PEOPLE.items()
        )
        self.olga = Actor("olga", {"other": Role.VIEWER}, via="token")

    def open(self) -> None:
        """Open the queue as a process that has just started does."""
        self.notifications = Notifications(
            self.store,
            self.access,
            self.audit,
            now=self.now,
            destinations=Destinations((ip_network("127.0.0.0/8"),)),
        )
        log = EventLog(self.events)
        self.intake = CaseIntake(self.settings, self.store, lambda _: FEATURES, now=self.now)
        self.outbox = OutcomeOutbox(self.settings, self.store, self.servers, now=self.now)
        self.reviews = Reviews(
            self.settings,
            self.store,
            self.access,
            self.audit,
            clock=ReviewClock(self.settings, self.store, self.notifications, log, now=self.now),
            outbox=self.outbox,
            now=self.now,
        )

    def now(self) -> datetime:
        return self.time

    def later(self, **length: float) -> None:
        self.time += timedelta(**length)

    def decision(self, name: str, *, minutes: float = 0, checkpoint: str = FRAUD, **more: Any) -> Entry:
        """Return the record of a decision, `minutes` before now."""
        self.sequence += 1
        fields: dict[str, Any] = {
            "decision_id": name,
            "checkpoint": checkpoint,
            "lane": "live",
            "bundle": bytes(32),
            "decided_at_us": micros(self.time - timedelta(minutes=minutes)),
            "features": [30.0, 12.5],
            "score": 0.5,
            "decision": "review" if checkpoint == FRAUD else "look",
        }
        return Entry(self.sequence, "decision", DecisionRecord(**{**fields, **more}))

    def withdrawal(self, entry: Entry) -> Entry:
        """Return the record that withdraws a decision."""
        self.sequence += 1
        record = WithdrawnRecord(
            sequence=entry.sequence,
            checkpoint=entry.record.checkpoint,
            decision_id=entry.record.decision_id,
        )
        return Entry(self.sequence, "withdrawn", record)

    def take(self, *entries: Entry, server: str = "live-1") -> None:
        self.intake.take(server, entries)

    def cases(self, actor: Actor | None = None, **asked: Any) -> Sequence[ReviewCase]:
        found, _ = self.reviews.list(actor or self.admin, CaseFilter(**asked), limit=1000)
        return found

    def ids(self, actor: Actor | None = None, **asked: Any) -> list[str]:
        """Return the decision ids of the listed cases."""
        return [one.decision_id for one in self.cases(actor, **asked)]

    def case(self, name: str) -> ReviewCase:
        (found,) = self.cases(decision_id=name)
        return found

    def history(self, name: str) -> list[str]:
        """Return the actions in the history of a decision's case."""
        return [one.action for one in self.reviews.get(self.admin, self.case(name).id).history]

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the events of this name in the event log."""
        lines = map(json.loads, self.events.getvalue().splitlines())
        return [one for one in lines if one["event"] == event]

    def channel(self) -> None:
        """Add a channel to project fraud."""
        self.notifications.add_channel(
            self.admin,
            "fraud",
            "https://127.0.0.1:1/hook",
            severity=Severity.WARNING,
            secret="correct horse battery staple",
        )


def decline(reason: str = "confirmed_fraud", **more: Any) -> DecideCase:
    return DecideCase(decision="decline", reason=reason, **more)  # type: ignore[arg-type]


def approve(reason: str = "customer_verified", **more: Any) -> DecideCase:
    return DecideCase(decision="approve", reason=reason, **more)  # type: ignore[arg-type]
