"""A platform full of synthetic data, for pages: the real store, people, audit log and calendar; the rest
stands in for what needs servers.

::

    platform, tokens = demo_platform(tmp_path)      # tokens by user: ada (admin), mia (modeler), otto (owner)
    app = create_app(platform, platform.settings)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from overtime import fill, record_tables, write_reference
from readouts import synthetic_readout

from scorer.bundle.models import Feature
from scorer.bundle.times import NodeTime
from scorer.log.scanning import Entry
from scorer.release.access import Access
from scorer.release.additions import Additions
from scorer.release.adoption.service import AdoptionAnalyses
from scorer.release.agents import AgentTools
from scorer.release.answers import (
    BundleDetail,
    BundleInfo,
    Channel,
    CheckpointView,
    DecisionPage,
    Delivery,
    MemberView,
    Outlook,
    RuleText,
)
from scorer.release.audit import Audit
from scorer.release.authoring import RuleAuthoring, RuleHistories
from scorer.release.builds import Builds
from scorer.release.calendar import Calendar, CalendarPage
from scorer.release.cards.card import Cards
from scorer.release.cards.documents import Documents
from scorer.release.changes import ChangeDetail, Draft, Step
from scorer.release.changes.review import review
from scorer.release.drift import DriftWatch
from scorer.release.errors import ConflictError, InvalidError, NotFoundError
from scorer.release.fleet import Fleet, Statuses
from scorer.release.loaded import BundlesInMemory
from scorer.release.model import (
    Actor,
    Booking,
    ChangeEvent,
    ChangeKind,
    ChangeRequest,
    ChangeState,
    LaneSpec,
    Outcome,
    RecordedTable,
    Role,
    Severity,
    Stage,
)
from scorer.release.permissions import Permissions
from scorer.release.requests import DecideCase, DecisionFilter, NewFreeze
from scorer.release.reviews import Reviews
from scorer.release.reviews.intake import CaseIntake
from scorer.release.service import Service
from scorer.release.settings import PlatformFile
from scorer.release.store import Store, micros, utcnow
from scorer.release.timeseries import MetricsOverTime
from scorer.release.trying import Trying
from scorer.release.weekly.service import WeeklyComparisons
from scorer.v1.log_pb2 import DecisionRecord
from scorer.v1.scoring_pb2 import AppliedRules

LIVE, NEXT, OTHER = (f"sha256:{letter * 4}{'0123456789ab' * 4}" for letter in ("3f9c", "a71e", "c04d"))
SETTINGS = """
[platform]
database = "platform.sqlite"
data_dir = "data"
learning = "learning"
[checkpoints."fraud.checkout"]
alias = "fraud-checkout@live"
p99_ms = 5.0
minutes = 60
matured_hours = 6.0
[checkpoints."fraud.checkout".review]
project = "fraud"
[checkpoints."action.authorise"]
alias = "action-authorise@live"
p99_ms = 8.0
"""
VERSIONS = {LIVE: "fraud-checkout", NEXT: "fraud-checkout", OTHER: "action-authorise"}


@dataclass
class DemoPlatform:
    """Has the interface of `scorer.release.open.PlatformServices`."""

    settings: PlatformFile
    store: Store
    service: Service
    leads: bool = True
    stopping: bool = False

    def close(self) -> None:
        self.service.metrics.close()
        self.service.drift.close()
        self.store.close()


def demo_platform(
    directory: Path, *, now: Callable[[], datetime] = utcnow, toml: str = SETTINGS
) -> tuple[DemoPlatform, dict[str, str]]:
    """Open a demo platform below a directory. `now` is the clock of sessions and tokens."""
    settings = PlatformFile.parse(toml, base=directory)
    store = Store(settings.platform.database)
    audit = Audit(store)
    access = Access(store, audit, now=now)
    _, secret = access.bootstrap("ada")
    ada = access.authenticate(secret)
    tokens = {"ada": secret}
    access.create_project(ada, "fraud", "Fraud at checkout", checkpoints=["fraud.checkout"])
    access.create_project(ada, "routing", "Payment actions")
    for user, role in (("mia", Role.MODELER), ("otto", Role.OWNER), ("vera", Role.VIEWER)):
        access.set_member(ada, "fraud", user, role)
        tokens[user] = access.create_token(ada, user=user, label=f"{user}'s laptop", role=role)[1]
    changes = DemoChanges(access)
    calendar = DemoCalendar(store, settings, audit)
    freeze: dict[str, Any] = {"minutes": 720, "reason": "Sales", "checkpoints": ["action.*"]}
    weekend = NewFreeze(name="Weekend", kind="deny", cron="0 18 * * 5", timezone="Europe/Amsterdam", **freeze)
    calendar.add_freeze(ada, weekend)
    changes.bookings = {one.change: one for one in calendar.bookings}
    reference = write_reference(directory / "reference")
    local: Any = SimpleNamespace(local=lambda digest: reference)
    fleet: Any = SimpleNamespace(members=())
    source: Any = SimpleNamespace(logs=())
    metrics = MetricsOverTime(settings, store, access, fleet, source, local, now=utcnow)
    fill(metrics.ledger, "fraud.checkout", utcnow(), (LIVE, NEXT))
    record_tables(store, "fraud.checkout", "fraud", utcnow(), (LIVE, NEXT), ("cr-000017", "cr-000012"))
    bundles: Any = DemoBundles()
    decisions = DemoDecisions()
    reviews = Reviews(settings, store, access, audit)
    parts: Any = SimpleNamespace(
        store=store, settings=settings, access=access, audit=audit, bundles=bundles, now=now
    )
    documents = Documents(parts)
    service = Service(
        access=access,
        agents=AgentTools(settings, store, audit),
        additions=Additions(settings, store, Fleet([]), audit, statuses=Statuses(Fleet([]))),
        audit=audit,
        authoring=RuleAuthoring(
            parts, cast("Any", changes), cast("Any", decisions), BundlesInMemory(bundles)
        ),
        builds=Builds(settings, store, access, audit, bundles),
        bundles=bundles,
        checkpoints=DemoCheckpoints(),
        calendar=calendar,
        cards=Cards(parts, documents, changes),
        changes=changes,
        decisions=decisions,
        documents=documents,
        drift=DriftWatch(
            settings,
            store,
            access,
            audit,
            cast("Any", DemoNotifications()),
            source,
            local,
            now=utcnow,
            events=cast("Any", None),
        ),
        metrics=metrics,
        notifications=DemoNotifications(),
        permissions=Permissions(store, access, audit, calendar),
        readouts=DemoReadouts(),
        reviews=reviews,
        rule_histories=RuleHistories(parts, metrics),
        versions=DemoVersions(),
        weekly=WeeklyComparisons(parts, None),
        adoption=AdoptionAnalyses(parts),
        comparisons=None,
        trying=Trying(store, settings, calendar, bundles),
        control=changes,
        discussion=changes,
    )
    _fill_reviews(settings, store, access, reviews, decisions, tokens)
    access.set_agent_tools(ada, "fraud", ["list_checkpoints", "live_metrics", "draft_change"])
    for tool, result, reason in (
        ("list_checkpoints", "done", ""),
        ("live_metrics", "cut", ""),
        ("explain_decision", "not-found", 'there is no tool "explain_decision" that you may use'),
        ("draft_change", "done", ""),
    ):
        call = {
            "client": "an agent 1.0", "result": result, "reason": reason, "milliseconds": 12.5, "size": 2048,
            "arguments": '{"checkpoint": "fraud.checkout"}', "digest": "0" * 64,
            "draft": "cr-000014" if tool == "draft_change" else "",
        }  # fmt: skip
        with store.write() as connection:
            audit.append(connection, ada, "agent.call", tool, project="fraud", details=call)
    return DemoPlatform(settings, store, service), tokens


def _fill_reviews(
    settings: PlatformFile,
    store: Store,
    access: Access,
    reviews: Reviews,
    decisions: DemoDecisions,
    tokens: Mapping[str, str],
) -> None:
    """Add the newest decisions that require a review, some of them overdue, claimed or decided."""
    mia, otto = (access.authenticate(tokens[user]) for user in ("mia", "otto"))
    asked = [row for row in decisions.recent(mia, "fraud.checkout", limit=500) if row["decision"] == "review"]
    features = (Feature(name="amount"),)
    entries = [
        Entry(
            place,
            "decision",
            DecisionRecord(
                decision_id=row["decision_id"],
                checkpoint=row["checkpoint"],
                lane=row["lane"],
                bundle=bytes.fromhex(LIVE.removeprefix("sha256:")),
                decided_at_us=micros(utcnow() - timedelta(minutes=7 * place)),
                features=[40.0 + 31 * place],
                score=row["score"],
                decision="review",
                reasons=[text.split()[0] for text in row["reasons"][: 1 + place % 3]],
                rules=AppliedRules(queue="level_2" if place % 3 == 1 else ""),
            ),
        )
        for place, row in enumerate(asked[:14])
    ]
    CaseIntake(settings, store, lambda _: features, now=utcnow).take("live-1", entries)
    reviews.claim(mia, 2)
    reviews.claim(otto, 4)
    reviews.decide(mia, 3, DecideCase(decision="decline", reason="confirmed_fraud", notes="Card stolen."))  # type: ignore[arg-type]
    reviews.decide(otto, 5, DecideCase(decision="approve", reason="known_customer"))  # type: ignore[arg-type]


class DemoCalendar(Calendar):
    """A calendar with bookings in the next days."""

    @property
    def bookings(self) -> list[Booking]:
        midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        fraud, action, test, release = (
            "fraud.checkout",
            "action.authorise",
            ChangeKind.TEST,
            ChangeKind.RELEASE,
        )
        planned = (
            ("mia", test, 26, 5, fraud, 1),
            ("otto", release, 33, 9, fraud, 1),
            ("mia", test, 52, 14, fraud, 1),
            ("otto", test, 49, 26, fraud, 2),
            ("vera", release, 80, 20, action, 1),
            ("mia", release, 100, 18, fraud, 2),
            ("otto", test, 1 / 60, 1 / 60, action, 1),
        )
        return [
            Booking(
                number,
                f"cr-{number:06}",
                "fraud",
                user,
                kind,
                checkpoint,
                slot,
                midnight + timedelta(hours=hours),
                midnight + timedelta(hours=hours + length),
                active=number != 27,
            )
            for number, (user, kind, hours, length, checkpoint, slot) in enumerate(planned, 21)
        ]

    def page(
        self, actor: Actor, start: datetime, end: datetime, *, checkpoint: str | None = None
    ) -> CalendarPage:
        page = super().page(actor, start, end, checkpoint=checkpoint)
        inside = [one for one in self.bookings if one.start < end and one.end > start]
        return replace(page, bookings=tuple(one for one in inside if checkpoint in (None, one.checkpoint)))


def _change(number: int, **given: Any) -> ChangeRequest:
    now = datetime.now(UTC)
    plain: dict[str, Any] = {
        "id": f"cr-{number:06}",
        "project": "fraud",
        "kind": ChangeKind.TEST,
        "checkpoint": "fraud.checkout",
        "bundle": NEXT,
        "bundle_name": "fraud-checkout",
        "title": "Card-testing features of October",
        "state": ChangeState.OBSERVING,
        "step": "sample",
        "created_by": "mia",
        "submitted_by": "mia",
        "created_at": now - timedelta(hours=30 - number),
        "updated_at": now - timedelta(minutes=90 - 4 * number),
        "version": 7,
        "minutes": 60.0,
        "note": "Observing since 38 minutes; 12,480 of about 20,000 requests.",
    }
    return ChangeRequest(**{**plain, **given})


class DemoChanges:
    def __init__(self, access: Access) -> None:
        self._access = access
        self.bookings: dict[str, Any] = {}
        self.comments: dict[str, list[tuple[str, str]]] = {
            "cr-000014": [
                ("otto", "Why is the review threshold lower?\nIt was 0.42."),
                ("mia", "More recall."),
            ]
        }
        passed, done = Outcome.PASS, ChangeState.DONE
        changes = [
            _change(
                20,
                kind=ChangeKind.RELEASE,
                state=ChangeState.REPORT,
                step="approval",
                verdict=passed,
                test="cr-000012",
                note="Its gates passed. It waits for an approver who did not submit it.",
            ),
            _change(
                19,
                kind=ChangeKind.RELEASE,
                state=ChangeState.RELEASED,
                step="canary 2",
                verdict=passed,
                test="cr-000012",
                approved_by="otto",
                note="Canary 1 has passed: 25 % of the answers now.",
                stages=(Stage(0.05, 15), Stage(0.25, 15), Stage(0.5, 30)),
            ),
            _change(18),
            _change(17, state=ChangeState.DRAFT, step="", title="LightGBM instead of XGBoost", note=""),
            _change(
                14,
                state=ChangeState.REJECTED,
                verdict=Outcome.FAIL,
                title="Deeper trees, 900 of depth 8",
                note="Execution p99 is 7.2 ms, above the promise of 5 ms.",
            ),
            _change(12, state=done, verdict=passed, note="All gates passed; it may be released."),
            _change(
                9,
                kind=ChangeKind.RELEASE,
                state=ChangeState.ROLLED_BACK,
                title="September retrain",
                note="Approve rate fell by 1.1 points at 5 %; rolled back by itself after 4 min.",
            ),
            *(
                _change(number, title="Booked ahead", state=ChangeState.BOOKED, note="")
                for number in range(21, 27)
            ),
        ]
        self.all = {one.id: one for one in changes}

    def _may(self, actor: Actor, project: str) -> bool:
        return actor.admin or project in actor.roles

    def list(
        self,
        actor: Actor,
        *,
        project: str | None = None,
        checkpoint: str | None = None,
        state: ChangeState | None = None,
        user: str | None = None,
        text: str | None = None,
        before: str | None = None,
        limit: int = 100,
        **_: Any,
    ) -> Sequence[ChangeRequest]:
        wanted = {"project": project, "checkpoint": checkpoint, "state": state, "created_by": user}
        return [
            one
            for one in sorted(self.all.values(), key=lambda one: one.id, reverse=True)
            if self._may(actor, one.project)
            and (not text or text.lower() in f"{one.title} {one.id} {one.bundle}".lower())
            and (not before or one.id < before)
            and all(value is None or getattr(one, name) == value for name, value in wanted.items())
        ][:limit]

    def get(self, actor: Actor, change: str) -> ChangeDetail:
        one = self.all.get(change)
        if one is None or not self._may(actor, one.project):
            raise NotFoundError(f'there is no change request "{change}", or not for you')
        begun = one.created_at
        names = (
            (ChangeState.CHECKS, "verify", "Every file and the digest of the whole agree."),
            (ChangeState.CHECKS, "golden", "256 golden cases, bit for bit."),
            (ChangeState.CHECKS, "schema", "The checkpoint feeds all of its 38 features."),
            (ChangeState.BOOKED, "booked", "Slot 1."),
            (ChangeState.DEPLOYING, "deploy", "2 of 2 servers observe with it."),
            (ChangeState.OBSERVING, "sample", "12,480 of about 20,000 requests seen."),
            (ChangeState.REPORT, "measure", "Figures and gates over everything seen."),
        )
        order, at = list(ChangeState), list(ChangeState).index(one.state)
        current = "waiting" if one.state in (ChangeState.BOOKED, ChangeState.REPORT) else "running"
        steps = tuple(
            Step(
                state,
                name,
                words if order.index(state) <= at else "",
                "done" if order.index(state) < at else current if order.index(state) == at else "to come",
                begun + timedelta(seconds=41 * place) if order.index(state) <= at else None,
                begun + timedelta(seconds=41 * place + 12) if order.index(state) < at else None,
            )
            for place, (state, name, words) in enumerate(names)
        )
        events = tuple(
            ChangeEvent(
                place, change, begun + timedelta(minutes=place), "platform", state, name, Severity.INFO, words
            )
            for place, (state, name, words) in enumerate(names[:5])
        )
        # One more change request, with every operation allowed.
        events += tuple(
            ChangeEvent(moved, change, begun, actor.user, one.state, "", Severity.INFO, "moved on")
            for moved in range(8, one.version + 1)
        )
        events += tuple(
            ChangeEvent(
                100 + place, change, begun, user, one.state, "", Severity.INFO, f"{user} commented: {text}",
                {"comment": text},
            )
            for place, (user, text) in enumerate(self.comments.get(change, ()))
        )  # fmt: skip
        own = actor.user == one.created_by
        allowed = {
            ChangeState.DRAFT: ("edit", "submit", "withdraw") if own else (),
            ChangeState.BOOKED: ("rebook", "withdraw") if own else (),
            ChangeState.OBSERVING: ("finish", "withdraw", "waive"),
            ChangeState.REPORT: ("withdraw",) if own else ("approve", "reject", "waive"),
            ChangeState.RELEASED: ("rollback",),
        }.get(one.state, ())
        gates = synthetic_readout().gates if one.verdict or one.state is ChangeState.OBSERVING else ()
        diff = {
            "against": LIVE,
            "features": {"added": ["bin_velocity", "card_tests_1h"], "removed": [], "changed": []},
            "bytes": {"before": 812_000, "after": 1_034_000},
            "thresholds": {
                "before": {"approve": 0.0, "review": 0.42, "decline": 0.83},
                "after": {"approve": 0.0, "review": 0.4, "decline": 0.8},
            },
            "metrics": {"auc": {"before": 0.9361, "after": 0.9412}},
            "lineage": {"run_id": {"before": "a91c20", "after": "b6f2e1"}},
        }
        outlook = None
        if one.state is ChangeState.RELEASED and one.stages:
            now, held = datetime.now(UTC), one.paused_at is not None
            outlook = Outlook(
                stage=2,
                stages=3,
                share=0.25,
                stage_ends=None if held else now + timedelta(minutes=9),
                ends=None if held else now + timedelta(minutes=39),
                waits=(f"paused by {one.paused_by}" if held else "score drift: 1,204 of 2,000 rows",),
                to_come=(3,),
            )
            allowed = ("resume" if held else "pause", "promote", "skip", "rollback")
        return ChangeDetail(
            one,
            steps,
            events,
            gates,
            self.bookings.get(change),
            diff,
            (*allowed, "comment", *(() if one.state.is_final else ("request_review",))),
            outlook=outlook,
            review=review(gates, diff) if gates else None,
        )

    def events(
        self, actor: Actor, change: str, *, after: int = 0, limit: int = 500
    ) -> tuple[ChangeState, Sequence[ChangeEvent]]:
        result = self.get(actor, change)
        return result.change.state, [one for one in result.events if one.id > after]

    def newest_events(self, changes: Sequence[str]) -> Mapping[str, int]:
        ada = Actor("ada", admin=True)
        return {change: self.get(ada, change).events[-1].id for change in changes}

    def summary(self, actor: Actor, change: str) -> ChangeRequest:
        return self.get(actor, change).change

    def several(self, actor: Actor, changes: Sequence[str]) -> Sequence[ChangeRequest]:
        return [self.summary(actor, change) for change in changes]

    def draft(self, actor: Actor, draft: Draft) -> ChangeRequest:
        self._access.require(actor, Role.MODELER, draft.project)
        one = _change(
            len(self.all) + 30,
            project=draft.project,
            kind=draft.kind,
            checkpoint=draft.checkpoint,
            title=draft.title,
            minutes=draft.minutes,
            state=ChangeState.DRAFT,
            created_by=actor.user,
            note="",
            description=draft.description,
            stages=draft.stages,
            gates=draft.gates,
        )
        self.all[one.id] = one
        return one

    def submit(
        self, actor: Actor, change: str, *, start: datetime | None = None, slot: int | None = None
    ) -> ChangeRequest:
        return self._to(actor, change, ChangeState.CHECKS)

    def rebook(
        self,
        actor: Actor,
        change: str,
        *,
        start: datetime,
        minutes: float | None = None,
        slot: int | None = None,
    ) -> ChangeRequest:
        raise ConflictError("slot 1 of fraud.checkout is booked then (cr-000023); the next free is slot 2")

    def approve(
        self, actor: Actor, change: str, *, version: int | None = None, comment: str = ""
    ) -> ChangeRequest:
        return self._to(actor, change, ChangeState.RELEASED)

    def rollback(self, actor: Actor, change: str, *, reason: str) -> ChangeRequest:
        return self._to(actor, change, ChangeState.ROLLED_BACK)

    def pause(self, actor: Actor, change: str, *, reason: str, version: int | None = None) -> ChangeRequest:
        self.all[change] = replace(self.all[change], paused_by=actor.user, paused_at=datetime.now(UTC))
        return self._to(actor, change, ChangeState.RELEASED)

    def resume(self, actor: Actor, change: str, *, reason: str, version: int | None = None) -> ChangeRequest:
        self.all[change] = replace(self.all[change], paused_by=None, paused_at=None)
        return self._to(actor, change, ChangeState.RELEASED)

    def comment(self, actor: Actor, change: str, *, text: str) -> ChangeRequest:
        self.comments.setdefault(change, []).append((actor.user, text))
        return self.all[change]

    def request_review(self, actor: Actor, change: str, *, reviewers: Sequence[str]) -> ChangeRequest:
        self.all[change] = replace(self.all[change], reviewers=tuple(reviewers))
        return self.all[change]

    def withdraw(self, actor: Actor, change: str, *, reason: str) -> ChangeRequest:
        return self._to(actor, change, ChangeState.REJECTED)

    def _to(self, actor: Actor, change: str, state: ChangeState) -> ChangeRequest:
        self.get(actor, change)
        self.all[change] = replace(self.all[change], state=state, version=self.all[change].version + 1)
        return self.all[change]


class DemoCheckpoints:
    def __init__(self) -> None:
        now = datetime.now(UTC)
        observe = (
            LaneSpec("aa", LIVE, "observe", sample=0.25),
            LaneSpec("cr-000018", NEXT, "observe", sample=0.25),
        )
        lanes = {
            "fraud.checkout": (
                (
                    LaneSpec("live", LIVE, share=0.94),
                    LaneSpec("canary", NEXT, share=0.05),
                    LaneSpec("holdout", OTHER, share=0.01),
                ),
                observe,
            ),
            "action.authorise": ((LaneSpec("live", OTHER, share=1.0),), ()),
        }
        self._tables = {
            name: [
                RecordedTable(
                    name,
                    31 - age,
                    *both,
                    now - timedelta(hours=5 * age + 1),
                    "mia",
                    f"cr-000018 table {31 - age}",
                    "cr-000018",
                )
                for age in range(6)
            ]
            for name, both in lanes.items()
        }
        self._random = np.random.default_rng(3)

    def list(self, actor: Actor) -> Sequence[CheckpointView]:
        return [self.view(actor, name) for name in sorted(self._tables, reverse=True)]

    def view(self, actor: Actor, checkpoint: str) -> CheckpointView:
        if checkpoint not in self._tables:
            raise NotFoundError(
                f'there is no checkpoint "{checkpoint}"; there are {", ".join(sorted(self._tables))}'
            )
        table = self._tables[checkpoint][0]
        counters = [
            {
                "lane": lane.name,
                "bundle": lane.bundle,
                "seen": 120_400,
                "left_out": 90_300,
                "taken": 30_100,
                "evaluated": 30_082,
                "dropped": 18,
                "shed": 0,
                "failed": {},
                "waiting": 0,
                "stuck": False,
                "exec_p50_us": 310.0,
                "exec_p99_us": 1450.0,
                "cpu_seconds": 14.2,
            }
            for lane in table.observe
        ]
        members = tuple(
            MemberView(
                name,
                "live",
                name != "scorer-3" or checkpoint == "fraud.checkout",
                "" if name != "scorer-3" or checkpoint == "fraud.checkout" else "connection refused",
                name != "scorer-3" or checkpoint == "fraud.checkout",
                table.answer,
                table.observe,
                counters,
            )
            for name in ("scorer-1", "scorer-2", "scorer-3")
        )
        kind = "score" if checkpoint.startswith("fraud") else "action"
        return CheckpointView(
            checkpoint,
            kind,
            f"{checkpoint.replace('.', '-')}@live",
            5.0 if kind == "score" else 8.0,
            2,
            0.25,
            "",
            False,
            table,
            members,
        )

    def kind(self, checkpoint: str) -> str:
        return "action" if checkpoint.startswith("action") else "score"

    def node_times(self, digest: str) -> Mapping[str, NodeTime]:
        micros = {"cleaned": 0.42, "margins": 4.83, "all": 0.031, "chosen": 0.044, "probability": 0.038}
        return {
            slot: NodeTime(mean, 1974) for slot, mean in (micros | {"ruled": 2.7, "decision": 0.02}).items()
        }

    def servers(self) -> Sequence[str]:
        return ("scorer-1", "scorer-2", "scorer-3")

    def history(self, actor: Actor, checkpoint: str, *, limit: int = 100) -> Sequence[RecordedTable]:
        return self._tables[checkpoint][:limit]

    def set_sampling(
        self,
        actor: Actor,
        checkpoint: str,
        *,
        sample: float,
        filter: str = "",  # noqa: A002
        pool: bool | None = None,
    ) -> CheckpointView:
        if not 0 < sample <= 1:
            raise InvalidError(f"sampling of {sample:g} is not above 0, to 1; write 0.1 for a tenth")
        return self.view(actor, checkpoint)

    def rollback(self, actor: Actor, checkpoint: str, *, reason: str) -> RecordedTable:
        return self._tables[checkpoint][1]


class DemoBundles:
    def list(
        self, actor: Actor, *, project: str | None = None, limit: int = 200, **_: Any
    ) -> Sequence[BundleInfo]:
        bundles = [self._info(digest) for digest in VERSIONS]
        return [one for one in bundles if project in (None, one.project)]

    def _info(self, digest: str) -> BundleInfo:
        changes = ("cr-000020", "cr-000018", "cr-000012") if digest == NEXT else ()
        return BundleInfo(
            digest,
            VERSIONS[digest],
            "action" if digest == OTHER else "score",
            "fraud",
            1_034_221,
            "mia",
            datetime.now(UTC) - timedelta(days=2),
            changes,
        )

    def detail(self, actor: Actor, digest: str) -> BundleDetail:
        digests = [one for one in VERSIONS if one.startswith(digest)]
        if not digests:
            raise NotFoundError(f'there is no bundle "{digest}"')
        random = np.random.default_rng(5)
        histogram = np.histogram(random.beta(0.6, 6, 5000), bins=40, range=(0, 1))
        reference = {
            "training": {"count": 5000, "edges": histogram[1].tolist(), "counts": histogram[0].tolist()}
        }
        features = [
            {"name": "amount", "type": "number", "missing": "refuse", "minimum": 0.0},
            {
                "name": "card_country",
                "type": "category",
                "missing": "allow",
                "categories": ["NL", "DE", "FR"],
            },
            {"name": "is_guest", "type": "flag", "missing": "allow"},
        ]
        lineage = {
            "data_digest": "sha256:" + "9d" * 32,
            "code_version": "4c1f2ab",
            "run_id": "b6f2e1",
            "metrics": {"auc": 0.9412, "log_loss": 0.0817},
            "library_versions": {"xgboost": "3.2.0"},
        }
        bands = [
            {"from": 0.0, "label": "approve"},
            {"from": 0.4, "label": "review"},
            {"from": 0.8, "label": "decline"},
        ]
        manifest = {
            "format": 1,
            "digest": digests[0],
            "name": VERSIONS[digests[0]],
            "kind": "score",
            "program": [
                {
                    "kind": "transform",
                    "input": "row",
                    "output": "cleaned",
                    "steps": [
                        {"function": "log1p", "feature": "amount"},
                        {"function": "table", "feature": "card_country", "table": "risk", "output": "risk"},
                    ],
                },
                {"kind": "forest", "file": "forest.bin", "input": "cleaned", "output": "margins"},
                {"kind": "forest", "file": "member-01.bin", "input": "cleaned", "output": "margins-1"},
                {"kind": "link", "input": "margins", "output": "all"},
                {"kind": "link", "input": "margins-1", "output": "guests"},
                {
                    "kind": "switch",
                    "row": "row",
                    "feature": "is_guest",
                    "cases": [{"input": "guests", "from": 0.5}],
                    "default": "all",
                    "output": "chosen",
                },
                {"kind": "calibrate", "map": "main", "input": "chosen", "output": "probability"},
                {"kind": "scoremap", "file": "score_map.json", "input": "probability", "output": "score"},
                {
                    "kind": "rules",
                    "file": "rules.toml",
                    "input": "score",
                    "output": "ruled",
                    "salt": "00" * 16,
                },
                {"kind": "threshold", "input": "ruled", "output": "decision", "bands": bands},
            ],
            "files": {"forest.bin": {"sha256": "77" * 32, "bytes": 980_000}},
        }
        rules = (
            RuleText("ratio", "value", "amount / average_amount", "", "", ""),
            RuleText(
                "unusual_amount",
                "rule",
                'ratio > 5.0 && !(country in ["NL", "DE"]) && !(card in list("trusted_cards"))',
                "decision review, reason R07, queue level_2, floor 0.6",
                "from 2026-11-01, 25 % of requests",
                "",
            ),
            RuleText(
                "limits.row1",
                "table, hit first",
                "amount > 5000.0",
                "decision decline, reason T1",
                "",
                "agreement with the acquirer, section 4",
            ),
        )
        lanes = ["fraud.checkout/canary"]
        return BundleDetail(self._info(digests[0]), manifest, lineage, reference, features, lanes, rules)

    def several(self, actor: Actor, digests: Collection[str]) -> Mapping[str, BundleInfo]:
        return {digest: self._info(digest) for digest in digests}


class DemoVersions:
    def lanes(self, actor: Actor) -> Mapping[str, tuple[str, ...]]:
        return {
            LIVE: ("live at fraud.checkout",),
            NEXT: ("canary at fraud.checkout",),
            OTHER: ("holdout at fraud.checkout", "live at action.authorise"),
        }


class DemoDecisions:
    def __init__(self) -> None:
        random = np.random.default_rng(11)
        self._made = [
            (float(score), float(time))
            for score, time in zip(random.beta(0.5, 3, 500), random.lognormal(6.2, 0.5, 500), strict=True)
        ]

    def _row(self, checkpoint: str, place: int) -> Mapping[str, Any]:
        score, time = self._made[place]
        label = "decline" if score >= 0.8 else "review" if score >= 0.4 else "approve"
        both = (
            {"decision": label, "score": score}
            if checkpoint.startswith("fraud")
            else {"action": "3ds=off|exemption=tra", "expected_reward": 0.9 - score / 5, "propensity": 0.82}
        )
        return {
            "decision_id": f"pay-{90_000 - place}",
            "checkpoint": checkpoint,
            "lane": "live",
            "bundle": LIVE,
            "decided_at": datetime.now(UTC) - timedelta(milliseconds=31 * place),
            "exec_us": int(time),
            "data_load_us": 42,
            "fallback_source": "",
            "fallback_reason": "",
            "reasons": ["card_tests_1h raises", "amount raises", "is_guest lowers"],
            **both,
        }

    def recent(self, actor: Actor, checkpoint: str, *, limit: int = 50) -> Sequence[Mapping[str, Any]]:
        return [self._row(checkpoint, place) for place in range(min(limit, 500))]

    def search(
        self,
        actor: Actor,
        checkpoint: str,
        asked: DecisionFilter,
        *,
        cursor: str | None = None,
        limit: int = 50,
    ) -> DecisionPage:
        begin = int(cursor or 0)
        rows = [
            {**row, "outcomes": {"fraud": 1.0} if place % 9 == 0 else {}}
            for place, row in enumerate(self.recent(actor, checkpoint, limit=500))
            if asked.decision in (None, row.get("decision"))
            and (asked.low is None or row.get("score", 0) >= asked.low)
        ]
        following = str(begin + limit) if len(rows) > begin + limit else None
        return DecisionPage(rows[begin : begin + limit], following, None)

    def find(self, actor: Actor, decision_id: str, *, checkpoint: str | None = None) -> Mapping[str, Any]:
        number = decision_id.removeprefix("pay-")
        if not number.isdigit() or not 89_500 < int(number) <= 90_000:
            raise NotFoundError(f'no log that this machine reads has decision "{decision_id}"; check the id')
        decision = self._row("fraud.checkout", 90_000 - int(number))
        shadow = {
            **decision,
            "lane": "cr-000018",
            "bundle": NEXT,
            "score": 0.86,
            "decision": "decline",
            "error": "",
        }
        return {
            "decision": decision,
            "observations": [{**decision, "lane": "aa"}, shadow],
            "outcomes": [{"kind": "fraud", "value": 0.0, "revision": 0, "received_at": datetime.now(UTC)}],
            "features": [
                {"name": "amount", "type": "number", "value": 249.9, "absent": False, "withheld": False},
                {
                    "name": "card_country",
                    "type": "category",
                    "value": "NL",
                    "absent": False,
                    "withheld": False,
                },
                {"name": "is_guest", "type": "flag", "value": None, "absent": True, "withheld": False},
            ],
        }


class DemoNotifications:
    def channels(self, actor: Actor, project: str) -> Sequence[Channel]:
        return [Channel(1, project, "slack://…/fraud-releases", "apprise", Severity.WARNING, (), "otto")]

    def deliveries(self, actor: Actor, project: str, *, limit: int = 100, **_: Any) -> Sequence[Delivery]:
        now = datetime.now(UTC)
        return [
            Delivery(2, 1, now, "cr-000014 rejected: execution p99", "sent", 1, ""),
            Delivery(
                1, 1, now - timedelta(hours=3), "cr-000009 rolled back", "given up", 6, "503 from the hook"
            ),
        ]

    def test_channel(self, actor: Actor, channel: int) -> Delivery:
        return Delivery(3, channel, datetime.now(UTC), "test", "sent", 1, "")


class DemoReadouts:
    def __init__(self) -> None:
        self._made: Any = None

    def readout(
        self,
        actor: Actor,
        change: str,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        server: str | None = None,
    ) -> Any:
        if change in ("cr-000017", "cr-000021"):
            raise NotFoundError(
                f"{change} has not been in the shadow yet; its report begins with its booking"
            )
        if self._made is None:
            self._made = synthetic_readout()
        return replace(self._made, change=change, bundle=NEXT, live_bundle=LIVE, checkpoint="fraud.checkout")

    def figure(self, actor: Actor, change: str, name: str) -> Any:
        named = {one.name: one for one in self.readout(actor, change).figures}
        if name not in named:
            raise NotFoundError(f'the report has no figure "{name}"; it has {", ".join(named)}')
        return named[name]


__all__ = ["DemoPlatform", "demo_platform"]
