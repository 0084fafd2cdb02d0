"""Tests of managed checkpoints: effects of changes outside the platform, and conditions of a rollback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from changing import CHECKPOINT, World, digest, stages
from fleet import one_by_one
from sqlalchemy import select

from scorer.release.fleet import Parallel
from scorer.release.lanes import recorded
from scorer.release.model import ChangeState, LaneSpec
from scorer.release.store import tables as t


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(f"sqlite:///{tmp_path}/platform.db")
    yield world
    world.store.close()


def audited(world: World, action: str) -> list[Any]:
    with world.store.read() as connection:
        return list(connection.execute(select(t.audit).where(t.audit.c.action == action)))


def released(world: World, bundle: str = "good-1", **more: Any) -> Any:
    """Return a completed RELEASE."""
    world.until(world.test(bundle).id, ChangeState.DONE)
    change = world.release(bundle, **more)
    world.until(change.id, ChangeState.REPORT)
    world.tick(1)
    world.changes.approve(world.bob, change.id)
    return world.until(change.id, ChangeState.DONE)


def waits_for_a_server(world: World, seconds: float) -> None:
    """Start a new process that calls all servers in parallel and waits the given time for each of them."""
    platform = world.settings.platform.model_copy(update={"reach_seconds": seconds})
    world.settings = world.settings.model_copy(update={"platform": platform})
    world.reopen()
    world.reconciler._spread = Parallel()


# --- compare and set ---


def test_a_stalled_leader_never_replaces_a_rollback(world: World) -> None:
    """The leader stalls after its decision for the second stage, and another process rolls back meanwhile."""
    world.until(world.test("good-1").id, ChangeState.DONE)
    change = world.release("good-1", stages=stages((0.1, 5.0), (0.5, 5.0)))
    world.until(change.id, ChangeState.REPORT)
    world.tick(1)
    world.changes.approve(world.bob, change.id)
    world.until(change.id, ChangeState.RELEASED)
    world.tick(0)
    stalled = []

    def rolls_back_meanwhile(member: str, method: str, checkpoint: str) -> None:
        if method == "set_answer" and not stalled and world.answer_lanes()["canary"] == ("good-1", 0.1):
            stalled.append(member)
            world.changes.rollback(world.olga, change.id, reason="orders fail")
            assert world.answer_lanes() == {"live": ("live-0", 1.0)}

    world.fleet.before_call = rolls_back_meanwhile
    world.run(minutes=10)
    assert stalled
    for member in ("live-1", "live-2"):
        shares = [table[CHECKPOINT].answer[0].share for table in world.fleet.held(member).tables]
        assert 0.5 not in shares
        assert world.answer_lanes(member) == {"live": ("live-0", 1.0)}
    assert world.get(change.id).state is ChangeState.ROLLED_BACK


# --- managed checkpoints ---


def test_every_live_server_gets_the_name_of_the_managing_platform(world: World) -> None:
    world.tick()
    for member in ("live-1", "live-2"):
        status = world.fleet.held(member).checkpoints[CHECKPOINT]
        assert (status.managed_by, status.following) == ("platform", "")


def test_servers_of_another_platform_are_reported(world: World) -> None:
    world.tick()
    world.fleet.platform = "other"
    world.tick()
    with world.store.read() as connection:
        rows = connection.execute(select(t.member_lanes)).all()
    assert all('managed by "platform"' in row.error for row in rows)


def test_a_break_glass_change_is_recorded_reported_and_followed(world: World) -> None:
    world.tick()
    world.tick()
    world.fleet.break_glass(
        "live-2",
        CHECKPOINT,
        [LaneSpec("live", digest("other-1"), share=1.0)],
        by="ops",
        reason="the platform's machine is down",
        at=world.now,
    )
    world.tick(1)
    world.tick(1)
    newest = world.tables()[-1]
    assert (newest.cause, newest.actor) == (recorded.BREAK_GLASS, "ops")
    assert world.answer_lanes("live-1") == world.answer_lanes("live-2") == {"live": ("other-1", 1.0)}
    (entry,) = audited(world, "lanes.break-glass")
    assert "the platform's machine is down" in entry.details
    (message,) = [body for subject, body in world.notifications.messages if "break glass" in subject][:1]
    assert "with --break-glass by ops: the platform's machine is down" in message


def test_a_break_glass_change_to_recorded_lanes_is_not_reverted(world: World) -> None:
    """The lanes are those of an earlier release, but the change is a new decision."""
    released(world)
    before = [LaneSpec("live", digest("live-0"), share=1.0)]
    world.fleet.break_glass("live-1", CHECKPOINT, before, by="ops", reason="fraud", at=world.now)
    world.tick(1)
    world.tick(1)
    assert world.tables()[-1].cause == recorded.BREAK_GLASS
    assert world.answer_lanes("live-1") == world.answer_lanes("live-2") == {"live": ("live-0", 1.0)}


def test_a_moved_alias_and_its_return_are_reported_once(world: World) -> None:
    world.tick()
    for member in ("live-1", "live-2"):
        world.fleet.drift(member, CHECKPOINT, digest("other-1"))
    world.tick(1)
    world.tick(1)
    assert len(audited(world, "alias.drift")) == 1
    assert (
        len([1 for subject, _ in world.notifications.messages if "was moved outside" in subject]) == 2
    )  # projects
    assert world.answer_lanes() == {"live": ("live-0", 1.0)}
    for member in ("live-1", "live-2"):
        world.fleet.drift(member, CHECKPOINT, "")
    world.tick(1)
    assert len(audited(world, "alias.drift-ended")) == 1


# --- rollback ---


def test_a_rollback_does_not_wait_for_servers(tmp_path: Path) -> None:
    """One of three servers sets its lanes only when the test permits it."""
    world = World(f"sqlite:///{tmp_path}/platform.db", members=3)
    change = released(world)
    waits_for_a_server(world, 0.2)
    let_go, arrived = threading.Event(), threading.Event()

    def hangs(member: str, method: str, checkpoint: str) -> None:
        if member == "live-2" and method == "set_answer":
            arrived.set()
            let_go.wait(60)

    world.fleet.before_call = hangs
    world.changes.rollback(world.olga, change.id, reason="orders fail")
    assert arrived.is_set()
    assert not let_go.is_set()
    for member in ("live-1", "live-3"):
        assert world.answer_lanes(member) == {"live": ("live-0", 1.0)}
    newest = world.tables()[-1].revision
    behind = world.reconciler.behind(CHECKPOINT, newest)
    assert behind == {"live-2": 'server "live-2" has not taken its lanes within 0.2 s; retried'}
    let_go.set()
    world.fleet.before_call = None
    world.reconciler._spread = one_by_one
    world.tick(1)
    assert world.answer_lanes("live-2") == {"live": ("live-0", 1.0)}
    world.store.close()


def test_a_rollback_does_not_wait_for_a_running_tick(tmp_path: Path) -> None:
    """A tick waits for an unreachable server while a user rolls back."""
    world = World(f"sqlite:///{tmp_path}/platform.db", members=2)
    change = released(world)
    waits_for_a_server(world, 20.0)
    let_go, arrived = threading.Event(), threading.Event()
    requests: list[str] = []

    def hangs(member: str, method: str, checkpoint: str) -> None:
        if member == "live-2" and method == "status" and not requests:
            requests.append(member)
            arrived.set()
            let_go.wait(60)

    world.fleet.before_call = hangs
    round_ = threading.Thread(target=world.reconciler.round)
    round_.start()
    assert arrived.wait(20)
    world.changes.rollback(world.olga, change.id, reason="orders fail")
    assert not let_go.is_set()
    for member in ("live-1", "live-2"):
        assert world.answer_lanes(member) == {"live": ("live-0", 1.0)}
    let_go.set()
    round_.join(20)
    assert world.answer_lanes("live-2") == {"live": ("live-0", 1.0)}
    world.store.close()


def test_the_pipeline_and_the_counters_share_one_status_of_the_fleet(world: World) -> None:
    world.tick()
    requests: list[str] = []
    world.fleet.before_call = lambda member, method, _: (
        requests.append(member) if method == "status" else None
    )
    world.tick()
    assert sorted(requests) == ["live-1", "live-2"]
