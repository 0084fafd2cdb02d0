"""A simulation of hundreds of change requests with kills, clock jumps and servers that vanish.

It covers the bookkeeping of the pipeline: servers, bundles and gates are substitutes, and a kill is an
exception between two statements, so that clean-up code runs. Real processes, real gates and SIGKILL are in
tests/integration/test_kills.py and `make kills`.

After every kill nothing that was in memory is left. However it went: no change is lost, none is released
without its gates and another person's approval, every table that a server ever had is a recorded one.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from changing import CHECKPOINT, OTHER, Killed, World, digest

from loadtests import ledger
from scorer.release import states
from scorer.release.errors import PlatformError
from scorer.release.lanes import recorded
from scorer.release.model import (
    Actor,
    ChangeKind,
    ChangeRequest,
    ChangeState,
    LaneSpec,
    Outcome,
    RecordedTable,
    Role,
)
from scorer.release.requests import NewFreeze
from scorer.release.store import tables as t

S = ChangeState
# Minimum number of kills during two hundred change requests, without which the run proves nothing.
LEAST_KILLS = 20
BUNDLES = ("good", "good", "good", "good", "good", "bad", "trap", "vague", "thin", "slow")
ANYBODY = Actor("zoe", {"fraud": Role.OWNER})


class Simulation:
    """Random actions of users, random failures, and the invariants."""

    def __init__(self, url: str, seed: int, count: int, *, members: int = 2) -> None:
        self.count = count
        self.random = random.Random(seed)
        self.world = World(url, members=members, pool=True, slots=6)
        self.seen: dict[str, int] = {}
        self.outside: list[tuple[LaneSpec, ...]] = []
        self.recorded: dict[str, list[RecordedTable]] = {CHECKPOINT: [], OTHER: []}
        self.drafted = 0
        self.counted: Counter[str] = Counter()
        self.world.fleet.after_call = self._after_call
        self.world.tick()

    # --- failures ---

    def guarded(self, work: object, *arguments: object, **more: object) -> object:
        """Call a function in a process that may be killed meanwhile."""
        if self.random.random() < 0.15:
            self.world.kill_after = self.random.randint(1, 60)
        try:
            return work(*arguments, **more)  # type: ignore[operator]
        except PlatformError as error:
            self.counted[type(error).__name__] += 1
        except Killed:
            self.counted["killed"] += 1
            self.world.reopen()
        finally:
            self.world.kill_after = None
        return None

    def _after_call(self, member: str, method: str, checkpoint: str) -> None:
        self.check_member(member)
        self.world.at()

    def failure(self) -> None:
        chance, world = self.random.random(), self.world
        name = self.random.choice([member.name for member in world.members])
        if chance < 0.3:
            world.fleet.disconnect(name)
        elif chance < 0.4:
            world.fleet.lose_responses(name, 1)
        elif chance < 0.5:
            world.fleet.restart(name)
        elif chance < 0.6:
            world.registry.away = not world.registry.away
        elif chance < 0.65:
            self.counted["clock"] += 1
            world.now += timedelta(hours=self.random.uniform(-12, 12))
        elif chance < 0.7 and name != "pool":
            # A user changes lanes at the command line.
            self.counted["outside"] += 1
            lane = LaneSpec("live", digest(f"other-{self.random.randrange(40)}"), share=1.0)
            self.outside.append((lane,))
            world.fleet.change_outside(name, CHECKPOINT, answer=[lane])
        elif chance < 0.72:
            sale = NewFreeze(
                name="sale",
                kind="deny",
                cron=f"{self.random.randrange(60)} {self.random.randrange(24)} * * *",
                timezone="Europe/Berlin",
                minutes=30,
            )
            self.guarded(world.calendar.add_freeze, world.admin, sale)
        else:
            for member in world.members:
                world.fleet.reconnect(member.name)

    # --- users ---

    def user_action(self) -> None:
        world = self.world
        if self.drafted < self.count and self.random.random() < 0.5:
            self.query()
            return
        result = world.all_changes()
        open_ = [change for change in result if not change.state.is_final]
        if not result:
            return
        change = self.random.choice(open_ or result)
        actor = self.random.choice([world.ada, world.bob, world.eve, world.olga, ANYBODY])
        changes = world.changes
        waits = [c for c in open_ if c.step == "approval"]
        chance = self.random.random()
        if chance < 0.45 and waits:
            change = self.random.choice(waits)
            self.guarded(changes.approve, actor, change.id)
        elif chance < 0.55:
            self.guarded(changes.submit, actor, change.id)
        elif chance < 0.60:
            self.guarded(changes.waive, actor, change.id, metric="error_rate", reason="trust me")
        elif chance < 0.65:
            self.guarded(changes.finish, actor, change.id)
        elif chance < 0.70:
            start = world.now + timedelta(minutes=self.random.uniform(-10, 120))
            self.guarded(changes.rebook, actor, change.id, start=start)
        elif chance < 0.74:
            self.guarded(changes.withdraw, actor, change.id, reason="no more")
        elif chance < 0.77:
            self.guarded(changes.reject, actor, change.id, reason="no")
        elif chance < 0.85:
            self.guarded(changes.rollback, actor, self.random.choice(result).id, reason="back")
        elif chance < 0.87:
            self.guarded(world.checkpoints.rollback, world.olga, CHECKPOINT, reason="back")
        elif chance < 0.90:
            sample = self.random.choice([0.1, 0.5, 1.0])
            self.guarded(world.checkpoints.set_sampling, world.olga, CHECKPOINT, sample=sample)

    def query(self) -> None:
        world = self.world
        passed = [
            change
            for change in world.all_changes()
            if change.kind is ChangeKind.TEST and change.state is S.DONE and change.verdict is Outcome.PASS
        ]
        kind = ChangeKind.RELEASE if passed and self.random.random() < 0.5 else ChangeKind.TEST
        name = (
            world.bundles.names[self.random.choice(passed).bundle]
            if kind is ChangeKind.RELEASE
            else f"{self.random.choice(BUNDLES)}-{self.random.randrange(40)}"
        )
        more = {"minutes": self.random.choice([10.0, 20.0]), "pool": self.random.random() < 0.3}
        actor = self.random.choice([world.ada, world.olga])
        result = self.guarded(world.changes.draft, actor, world.draft_of(name, kind, **more))
        if isinstance(result, ChangeRequest):
            self.drafted += 1
            self.guarded(world.changes.submit, actor, result.id)

    # --- invariants ---

    def check_member(self, name: str) -> None:
        """Check that the lanes of a server are recorded ones, in spite of kills while they were set."""
        world = self.world
        kill, world.kill_after = world.kill_after, None
        for checkpoint, status in world.fleet.held(name).checkpoints.items():
            tables = self.recorded[checkpoint]
            with world.store.read() as connection:
                # Recorded tables do not change, so that only new ones are read.
                tables += recorded.history(connection, checkpoint, since=len(tables) + 1)[::-1]
            answers = [table.answer for table in tables] + self.outside
            if name != "pool" and tables:
                assert any(recorded.same_answer(status.answer, answer) for answer in answers), (name, status)
            observes = [()] + [
                tuple(lane for lane in table.observe if lane.pool or name != "pool") for table in tables
            ]
            assert any(recorded.same_observe(status.observe, lanes) for lanes in observes), (name, status)
        world.kill_after = kill

    def check(self, *, over: bool = False) -> None:
        for change in self.world.all_changes():
            assert change.version >= self.seen.get(change.id, 0), change
            self.seen[change.id] = change.version
        assert ledger.check(self.world.store, [CHECKPOINT, OTHER], known=self.seen, over=over) == []

    def check_end(self) -> None:
        world = self.world
        assert len(world.all_changes()) >= self.drafted
        self.check(over=True)
        for checkpoint in (CHECKPOINT, OTHER):
            tables = world.tables(checkpoint)
            assert [table.revision for table in tables] == list(range(1, len(tables) + 1))
            known = [(table.answer, table.observe) for table in self.recorded[checkpoint]]
            assert [(table.answer, table.observe) for table in tables[: len(known)]] == known
            for member in world.members:
                status = world.fleet.held(member.name).checkpoints[checkpoint]
                assert recorded.has(tables[-1], status, member.role), (member, checkpoint)
            assert tables[-1].observe == ()
        changes = world.all_changes()
        self.counted.update(f"{change.kind} {change.state}" for change in changes)
        for change in changes:
            self.check_stages(change)

    def check_stages(self, change: ChangeRequest) -> None:
        """Check that stages were in order, and that all answers came last and only after an approval."""
        world = self.world
        shares = [
            round(
                sum(
                    lane.share
                    for lane in table.answer
                    if lane.name in ("canary", "live") and lane.bundle == change.bundle
                ),
                9,
            )
            for table in world.tables(change.checkpoint)
            if table.change == change.id and table.cause in (recorded.STAGE, recorded.RELEASE)
        ]
        assert shares == [0.1, 0.5, 1.0][: len(shares)] or change.before == change.bundle
        if change.state is S.DONE and change.kind is ChangeKind.RELEASE:
            assert len(shares) == 3
        if not shares:
            return
        self.counted["released"] += 1
        entries = [e.action for e in world.audit.entries(world.admin, object=change.id, limit=1000)][::-1]
        assert entries.index("change.approve") < entries.index("change.release")


def simulate(url: str, seed: int, count: int) -> Simulation:
    print(f"seed {seed}, {count} changes")
    sim = Simulation(url, seed, count)
    rounds = 0
    while sim.drafted < count or rounds < 2 * count:
        rounds += 1
        for _ in range(sim.random.randrange(3)):
            sim.user_action()
        if sim.random.random() < 0.15:
            sim.failure()
        sim.world.pass_time(sim.random.choice([0.2, 1.0, 3.0]))
        sim.guarded(sim.world.runner.tick)
        if rounds % 25 == 0:
            sim.check()
    # From here on there are no failures and no actions of users.
    sim.world.registry.away = False
    for member in sim.world.members:
        sim.world.fleet.reconnect(member.name)
    for change in sim.world.all_changes():
        if change.state is S.DRAFT:
            sim.world.changes.withdraw(sim.world.olga, change.id, reason="left over")
    with sim.world.store.write() as connection:
        connection.execute(t.freezes.delete())
    for _ in range(400):
        if not any(change.state in states.OPEN for change in sim.world.all_changes()):
            break
        for change in sim.world.all_changes():
            if change.step == "approval":
                sim.world.changes.reject(sim.world.bob, change.id, reason="the end")
        sim.world.tick(10)
    sim.world.tick(10)
    sim.check()
    sim.check_end()
    sim.world.store.close()
    return sim


def test_kills_lose_no_change_request_and_release_none_without_its_gates(tmp_path: Path) -> None:
    sim = simulate(f"sqlite:///{tmp_path}/platform.db", seed=1, count=24)
    assert sim.counted["killed"] > 0


SEEDS = (2, 3)


@pytest.fixture(scope="module")
def two_hundred(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Counter[str]]:
    """Return the events of two hundred change requests by seed. Every test that uses it can run alone."""
    directory = tmp_path_factory.mktemp("two-hundred")
    return {seed: simulate(f"sqlite:///{directory}/{seed}.db", seed, count=200).counted for seed in SEEDS}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_two_hundred_changes_keep_the_invariants(two_hundred: dict[int, Counter[str]], seed: int) -> None:
    counted = two_hundred[seed]
    assert counted["killed"] >= LEAST_KILLS, counted
    for what in ("test done", "test rejected", "release done", "release rolled back"):
        assert counted[what] > 0, (what, counted)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_rare_events_occur_with_some_seed(two_hundred: dict[int, Counter[str]]) -> None:
    happened = sum(two_hundred.values(), Counter[str]())
    for what in ("clock", "outside"):
        assert happened[what] > 0, (what, happened)


def test_the_invariants_hold_on_postgresql(database_url: str) -> None:
    simulate(database_url, seed=5, count=8)
