"""A platform without servers, bundles or a clock of its own: what change requests are tested in.

::

    world = World(url)
    change = world.test("good-1")                     # drafted and submitted by ada
    world.run(minutes=90)                             # ticks; the clock goes on, rows come in
    world.changes.approve(world.bob, release.id)
    world.reopen()                                    # a new process over the same database

`good-*` bundles pass their gates, `bad-*` fail in the shadow, `trap-*` fail in the canary, `vague-*` stay
inconclusive there, `thin-*` get no rows. `world.kill_after = n`: the n-th statement, commit or call from now
on raises `Killed`, and nothing else is done by that process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fleet import FakeFleet, one_by_one
from sqlalchemy import Connection, event, insert, select

from scorer.errors import RegistryUnavailableError
from scorer.registry.base import Resolved
from scorer.release.access import Access
from scorer.release.answers import BundleDetail, BundleInfo
from scorer.release.audit import Audit
from scorer.release.calendar import Calendar
from scorer.release.changes import Draft, rows
from scorer.release.changes.checks import RUN, Checked
from scorer.release.changes.operations import Changes
from scorer.release.changes.parts import Parts
from scorer.release.changes.pipeline import Pipeline
from scorer.release.changes.runner import Runner
from scorer.release.checkpoints import Checkpoints
from scorer.release.errors import InvalidError, NotFoundError
from scorer.release.fleet import Member
from scorer.release.gates.counting import Account
from scorer.release.lanes import recorded
from scorer.release.lanes.alerts import Alerts
from scorer.release.lanes.reconcile import Reconciler
from scorer.release.model import (
    Actor,
    ChangeKind,
    ChangeRequest,
    ChangeState,
    GateResult,
    Outcome,
    Quotas,
    Role,
    Stage,
)
from scorer.release.notify import Notifications
from scorer.release.permissions import Permissions
from scorer.release.settings import PlatformFile
from scorer.release.store import Store
from scorer.release.store import tables as t

CHECKPOINT, OTHER = "fraud.checkout", "action.authorise"
START = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)
ENOUGH = 300
"""Number of rows from which the fake gates reach a verdict."""


class Killed(BaseException):
    """Simulates SIGKILL between two statements."""


def digest(name: str) -> str:
    return f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"


class FakeBundles:
    """Bundles without files. The digest of bundle `good-1` is `digest("good-1")`."""

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}
        self.features: dict[str, list[dict[str, Any]]] = {}
        self.names = {digest(name): name for name in _names()}
        self.bundle_names: dict[str, str] = {}
        self.lineages: dict[str, dict[str, Any]] = {}
        self.unsigned: set[str] = set()
        """Names of bundles that no trusted key has signed."""

    def signature(self, digest: str) -> None:
        if self.names[digest] in self.unsigned:
            raise InvalidError(f"bundle {digest[7:19]}: it has no signature; sign it")

    def info(self, actor: Actor, reference: str) -> BundleInfo:
        name = self.names.get(reference) or (reference if reference in self.names.values() else None)
        if name is None:
            raise NotFoundError(f'no bundle "{reference}" that you may see; upload it')
        kind = self.kinds.get(name, "action" if name.startswith("act") else "score")
        usual = "action-authorise" if kind == "action" else "fraud-checkout"
        return BundleInfo(digest(name), self.bundle_names.get(name, usual), kind, "fraud", 1000, "ada", START)

    def detail(self, actor: Actor, reference: str) -> BundleDetail:
        info = self.info(actor, reference)
        features = self.features.get(self.names[info.digest], [{"name": "amount", "type": "number"}])
        return BundleDetail(info, {}, self.lineages.get(self.names[info.digest], {}), {}, features, ())

    def differences(self, first: str, second: str) -> tuple[str, ...]:
        """Return none between revisions of a bundle: `act-0-r3` is the third revision of `act-0`."""
        roots = {self.names[each].partition("-r")[0] for each in (first, second)}
        return () if len(roots) == 1 else ("oracle.forest",)

    def local(self, reference: str) -> Path:
        raise AssertionError("no files here")


def _names() -> list[str]:
    kinds = ("good", "bad", "trap", "vague", "thin", "live", "act", "slow", "other")
    revisions = [f"{name}-r{number}" for name in ("act-0", "act-1", "act-2") for number in range(1, 9)]
    return [f"{kind}-{number}" for kind in kinds for number in range(40)] + revisions


class FakeRegistry:
    """A registry that has aliases but no bundles."""

    def __init__(self, aliases: dict[str, str], at: Callable[[], None]) -> None:
        self.aliases_ = aliases
        self.away = False
        self.moves: list[tuple[str, str]] = []
        self._at = at

    def resolve(self, reference: str) -> Resolved:
        if self.away:
            raise RegistryUnavailableError("registry is away")
        return Resolved(self.aliases_[reference], None)

    def alias(self, name: str, alias: str, target: str, *, by: str | None = None, reason: str = "") -> None:
        self._at()
        if self.away:
            raise RegistryUnavailableError("registry is away")
        if self.aliases_[f"{name}@{alias}"] != target:
            self.aliases_[f"{name}@{alias}"] = target
            self.moves.append((f"{name}@{alias}", target))
        self._at()


class FakeReadouts:
    """Reports whose rows grow while lanes are active; their gates depend on the bundle's name."""

    def __init__(self, names: dict[str, str], now: Callable[[], datetime], at: Callable[[], None]) -> None:
        self.rows: dict[str, int] = {}
        self.missing: dict[str, int] = {}
        self.finished: dict[str, Outcome] = {}
        self.judged: list[tuple[str, str]] = []
        self._names, self._now, self._at = names, now, at

    def collect(self) -> None:
        pass

    def measure(self, change: ChangeRequest) -> int:
        return self.rows.get(change.id, 0)

    def counts(self, change: ChangeRequest) -> Account:
        count, failed = self.measure(change), self.missing.get(change.id, 0)
        return Account(taken=count + failed, observed=count, failed=failed)

    def judge(self, change: ChangeRequest) -> tuple[GateResult, ...]:
        self.judged.append((change.id, "shadow"))
        count, name = self.rows.get(change.id, 0), self._names[change.bundle]
        outcome = Outcome.PASS if not name.startswith("bad") else Outcome.FAIL
        return (self._result(outcome if count >= ENOUGH else Outcome.INCONCLUSIVE, count),)

    def judge_canary(
        self, change: ChangeRequest, since: datetime, *, settled: Collection[str] = ()
    ) -> tuple[GateResult, ...]:
        self.judged.append((change.id, change.step))
        name = self._names[change.bundle]
        outcomes = {"trap": Outcome.FAIL, "vague": Outcome.INCONCLUSIVE}
        outcome = outcomes.get(name.split("-")[0], Outcome.PASS)
        if self._now() - since < timedelta(minutes=1):
            outcome = Outcome.INCONCLUSIVE
        return (self._result(outcome, 1000),)

    def finish(self, change: ChangeRequest, gates: Sequence[GateResult], verdict: Outcome) -> None:
        self._at()
        self.finished[change.id] = verdict
        self._at()

    def _result(self, outcome: Outcome, count: int) -> GateResult:
        return GateResult("error_rate", outcome, 0.0, None, None, 0.0, count, "== 0", f"{outcome} of {count}")


class RecordedNotifications(Notifications):
    """Records messages instead of sending them."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str]] = []

    def tell(
        self, connection: Connection, project: str, severity: Any, subject: str, body: str, **_: Any
    ) -> None:
        self.messages.append((subject, body))


_empty: dict[str, bytes] = {}


def _migrated(url: str) -> None:
    """Create a SQLite file as a copy of one that was migrated once, because a migration takes long."""
    path = Path(url.removeprefix("sqlite:///"))
    if not url.startswith("sqlite") or path.exists():
        return
    if not _empty:
        with TemporaryDirectory() as directory:
            template = Path(directory) / "empty.db"
            Store(f"sqlite:///{template}").close()
            _empty["file"] = template.read_bytes()
    path.write_bytes(_empty["file"])


class KillableStore(Store):
    """Calls `at` before every statement, and before and after every commit."""

    def __init__(self, url: str, at: Callable[[], None]) -> None:
        self._at: Callable[[], None] = lambda: None
        _migrated(url)
        super().__init__(url)
        if self.dialect == "sqlite":
            # A simulated kill loses no file contents, so that commits need not wait for the disk.
            event.listen(
                self._engine, "connect", lambda raw, _record: raw.execute("PRAGMA synchronous=OFF").close()
            )
            self._engine.dispose()
        self._at = at
        event.listen(self._engine, "before_cursor_execute", lambda *_: self._at())

    @contextmanager
    def write(self) -> Iterator[Connection]:
        with super().write() as connection:
            yield connection
            self._at()
        self._at()


class World:
    """The services of a platform over one database. `reopen` creates them again as a new process would."""

    def __init__(self, url: str, *, members: int = 2, pool: bool = False, **checkpoint: Any) -> None:
        self.url = url
        self.now = START
        self.kill_after: int | None = None
        self.rows_per_minute = 100
        names = [f"live-{n}" for n in range(1, members + 1)]
        self.members = [Member(name, "", "live") for name in names]
        if pool:
            self.members.append(Member("pool", "", "shadow"))
        self.fleet = FakeFleet(
            self.members,
            checkpoints={CHECKPOINT: "score", OTHER: "action"},
            answer={CHECKPOINT: digest("live-0"), OTHER: digest("act-0")},
        )
        self.fleet.before_call = self.fleet.after_call = lambda *_: self.at()
        self.bundles = FakeBundles()
        self.registry = FakeRegistry(
            {"fraud-checkout@live": digest("live-0"), "action-authorise@live": digest("act-0")}, self.at
        )
        self.readouts = FakeReadouts(self.bundles.names, lambda: self.now, self.at)
        usual: dict[str, Any] = {
            "slots": 2,
            "minutes": 30.0,
            "patience_minutes": 10.0,
            "sample": 0.5,
            "stages": ({"share": 0.1, "minutes": 5.0}, {"share": 0.5, "minutes": 5.0}),
        }
        self.settings = PlatformFile.model_validate(
            {
                "checkpoints": {
                    CHECKPOINT: {"alias": "fraud-checkout@live", **usual, **checkpoint},
                    OTHER: {"alias": "action-authorise@live", **usual, **checkpoint},
                },
                "fleet": [
                    {"name": m.name, "control": f"127.0.0.1:{9000 + n}", "role": m.role}
                    for n, m in enumerate(self.members)
                ],
            },
            context={"base": Path("/nowhere")},
        )
        self.ada = Actor("ada", {"fraud": Role.MODELER})
        self.bob = Actor("bob", {"fraud": Role.APPROVER})
        self.eve = Actor("eve", {"fraud": Role.APPROVER})
        self.olga = Actor("olga", {"fraud": Role.OWNER})
        self.admin = Actor("root", admin=True)
        self.stranger = Actor("sam", {"other": Role.OWNER})
        self.store = KillableStore(url, self.at)
        self._open_services()
        self._create_projects()

    def at(self) -> None:
        """Raise `Killed` if the process is to be killed here. Called wherever a kill is simulated."""
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after <= 0:
                self.kill_after = None
                raise Killed

    def reopen(self) -> None:
        """Start a new process: open the database again and lose everything that was in memory."""
        self.kill_after = None
        self.store.close()
        self.store = KillableStore(self.url, self.at)
        self._open_services()

    def _open_services(self) -> None:
        def now() -> datetime:
            return self.now

        store, settings = self.store, self.settings
        self.audit = Audit(store, now=now)
        self.access = Access(store, self.audit, now=now)
        self.notifications = RecordedNotifications()
        self.calendar = Calendar(store, settings, self.audit, now=now)
        self.reconciler = Reconciler(
            store,
            settings,
            self.fleet,
            self.registry,  # type: ignore[arg-type]
            self.audit,
            now=now,
            alerts=Alerts(self.audit, self.notifications, now=now),
            spread=one_by_one,
        )
        self.permissions = Permissions(store, self.access, self.audit, self.calendar, now=now)
        self.parts = Parts(
            store=store,
            settings=settings,
            access=self.access,
            audit=self.audit,
            notifications=self.notifications,
            bundles=self.bundles,  # type: ignore[arg-type]
            calendar=self.calendar,
            reconciler=self.reconciler,
            permissions=self.permissions,
            readouts=self.readouts,  # type: ignore[arg-type]
            now=now,
        )
        self.changes = Changes(self.parts)
        self.checkpoints = Checkpoints(self.parts, self.changes)
        self.pipeline = Pipeline(self.parts, self.changes, run_checks=dict.fromkeys(RUN, self._check))
        self.runner = Runner(self.parts, self.pipeline)

    def _check(self, about: Any) -> Checked:
        return Checked(not self.bundles.names[about.change.bundle].startswith("slow"), "as it is named")

    def _create_projects(self) -> None:
        for name in ("fraud", "other"):
            quotas = Quotas(open_changes=1000, slot_minutes_per_week=10_000_000)
            self.access.create_project(self.admin, name, name, quotas=quotas)
        with self.store.write() as connection:
            for user in ("ada", "bob", "eve", "olga", "root", "sam"):
                connection.execute(insert(t.users).values(name=user, admin=user == "root", created_at=START))

    # --- operations of the tests ---

    def draft_of(self, bundle: str, kind: ChangeKind = ChangeKind.TEST, **more: Any) -> Draft:
        checkpoint = OTHER if bundle.startswith("act") else CHECKPOINT
        return Draft(
            **{
                "project": "fraud",
                "kind": kind,
                "checkpoint": checkpoint,
                "bundle": bundle,
                "title": f"try {bundle}",
                "minutes": 30.0,
                **more,
            }
        )

    def test(self, bundle: str, *, actor: Actor | None = None, **more: Any) -> ChangeRequest:
        """Draft a TEST and submit it for the next free slot."""
        who = actor or self.ada
        self.tick()
        change = self.changes.draft(who, self.draft_of(bundle, **more))
        return self.changes.submit(who, change.id)

    def release(self, bundle: str, *, actor: Actor | None = None, **more: Any) -> ChangeRequest:
        """Draft a RELEASE and submit it for the next free slot."""
        return self.test(bundle, actor=actor, kind=ChangeKind.RELEASE, **more)

    def tick(self, minutes: float = 0) -> None:
        """Advance the clock, add the rows of that time, and run one tick."""
        self.pass_time(minutes)
        self.runner.tick()

    def pass_time(self, minutes: float) -> None:
        """Advance the clock, and add the rows that the observe lanes record in that time."""
        self.now += timedelta(minutes=minutes)
        for member in self.members:
            held = self.fleet.held(member.name)
            if not held.up:
                continue
            for status in held.checkpoints.values():
                for lane in status.observe:
                    thin = self.bundles.names[lane.bundle].startswith("thin")
                    if lane.name != "aa" and not thin and (member.role == "shadow") == lane.pool:
                        added = int(self.rows_per_minute * minutes * lane.sample)
                        self.readouts.rows[lane.name] = self.readouts.rows.get(lane.name, 0) + added

    def run(self, *, minutes: float, step: float = 1.0) -> None:
        """Tick every `step` minutes for `minutes` minutes."""
        for _ in range(int(minutes / step)):
            self.tick(step)

    def get(self, change: str) -> ChangeRequest:
        with self.store.read() as connection:
            return rows.load(connection, change)

    def until(self, change: str, *states: ChangeState, limit: int = 400) -> ChangeRequest:
        """Tick once a minute until a change is in one of the states; return the change."""
        for _ in range(limit):
            current = self.get(change)
            if current.state in states:
                return current
            self.tick(1)
        raise AssertionError(f"{self.get(change)} is not {states}: {self.messages_of(change)[-3:]}")

    def messages_of(self, change: str) -> list[str]:
        return [event.message for event in self.changes.get(self.admin, change).events]

    def tables(self, checkpoint: str = CHECKPOINT) -> list[Any]:
        """Return the recorded lane tables, oldest first."""
        with self.store.read() as connection:
            return recorded.history(connection, checkpoint)[::-1]

    def answer_lanes(
        self, member: str = "live-1", checkpoint: str = CHECKPOINT
    ) -> dict[str, tuple[str, float]]:
        """Return the name of the bundle and the share of each answer lane of a server, by lane."""
        lanes = self.fleet.held(member).checkpoints[checkpoint].answer
        return {lane.name: (self.bundles.names[lane.bundle], round(lane.share, 6)) for lane in lanes}

    def observe_lanes(self, member: str = "live-1", checkpoint: str = CHECKPOINT) -> dict[str, str]:
        lanes = self.fleet.held(member).checkpoints[checkpoint].observe
        return {lane.name: self.bundles.names[lane.bundle] for lane in lanes}

    def all_changes(self) -> list[ChangeRequest]:
        with self.store.read() as connection:
            return [rows.change(row) for row in connection.execute(select(t.changes))]


def stages(*pairs: tuple[float, float]) -> tuple[Stage, ...]:
    return tuple(Stage(*pair) for pair in pairs)


__all__ = ["CHECKPOINT", "OTHER", "START", "Killed", "World", "digest", "stages"]
