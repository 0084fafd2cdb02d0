"""Tests of the control of a release: pause, resume, promote, skip, and the expected ends of stages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from changing import CHECKPOINT, Killed, World, digest
from sqlalchemy import select

from scorer.release.changes import rows
from scorer.release.changes.control import Control
from scorer.release.errors import ConflictError, FrozenError, InvalidError, NotAllowedError, NotFoundError
from scorer.release.model import Actor, ChangeState, GateResult, Outcome, Role, Stage
from scorer.release.requests import NewFreeze
from scorer.release.store import tables as t

S = ChangeState
LIVE = ("live-0", 1.0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(f"sqlite:///{tmp_path}/platform.db")
    yield world
    world.store.close()


def control(world: World) -> Control:
    return Control(world.parts, world.changes)


def rolling(world: World, bundle: str = "good-1", **more: object) -> str:
    """Return a RELEASE in its first stage whose lanes every server has."""
    world.until(world.test(bundle).id, S.DONE)
    change = world.release(bundle, **more)
    world.until(change.id, S.REPORT)
    world.run(minutes=2)
    world.changes.approve(world.bob, change.id)
    world.until(change.id, S.RELEASED)
    world.run(minutes=2)
    assert world.answer_lanes()["canary"] == (bundle, 0.1)
    return change.id


def audited(world: World, change: str) -> list[str]:
    with world.store.read() as connection:
        result = connection.scalars(select(t.audit.c.action).where(t.audit.c.object == change))
        return [action.removeprefix("change.") for action in result]


# --- pause and resume ---


def test_a_pause_keeps_the_shares_while_the_gates_are_still_evaluated(world: World) -> None:
    name = rolling(world)
    paused = control(world).pause(world.ada, name, reason="the bank is on the phone")
    assert (paused.paused_by, paused.paused_at) == ("ada", world.now)
    judged = len(world.readouts.judged)
    world.run(minutes=60)
    assert world.answer_lanes()["canary"] == ("good-1", 0.1)
    assert len(world.readouts.judged) > judged
    assert world.get(name).step == "canary 1"
    control(world).resume(world.ada, name, reason="all is well")
    assert world.get(name).paused_by is None
    assert world.until(name, S.DONE).state is S.DONE
    assert {"pause", "resume"} <= set(audited(world, name))
    assert any("paused by ada: the bank is on the phone" in message for message in world.messages_of(name))
    assert any("paused by ada" in body for _, body in world.notifications.messages)


def test_a_gate_that_fails_rolls_a_paused_release_back(world: World) -> None:
    name = rolling(world, stages=(Stage(0.1, 30),))
    control(world).pause(world.bob, name, reason="wait")
    world.bundles.names[digest("good-1")] = "trap-1"
    world.run(minutes=4)
    assert world.get(name).state is S.ROLLED_BACK
    assert world.answer_lanes() == {"live": LIVE}


def test_a_pause_stops_the_clock_of_an_inconclusive_stage(world: World) -> None:
    name = rolling(world)
    world.bundles.names[digest("good-1")] = "vague-1"
    control(world).pause(world.ada, name, reason="wait")
    world.run(minutes=120, step=5)
    assert world.get(name).state is S.RELEASED
    control(world).resume(world.ada, name, reason="go on")
    world.run(minutes=8)
    assert world.get(name).state is S.RELEASED
    world.run(minutes=4)
    assert world.get(name).state is S.ROLLED_BACK


def test_a_restart_during_a_pause_changes_nothing(world: World) -> None:
    name = rolling(world)
    control(world).pause(world.ada, name, reason="wait")
    world.reopen()
    world.run(minutes=60, step=5)
    assert (world.get(name).step, world.get(name).paused_by) == ("canary 1", "ada")
    assert world.answer_lanes()["canary"] == ("good-1", 0.1)
    world.reopen()
    control(world).resume(world.ada, name, reason="go on")
    assert world.until(name, S.DONE).verdict is Outcome.PASS


def test_a_pause_is_reported_every_day(world: World) -> None:
    name = rolling(world)
    control(world).pause(world.ada, name, reason="wait")
    world.run(minutes=3 * 24 * 60 + 10, step=30)
    messages = [message for message in world.messages_of(name) if "has been paused since" in message]
    assert len(messages) == 3


def test_only_paused_releases_are_resumed_and_none_is_paused_twice(world: World) -> None:
    name = rolling(world)
    with pytest.raises(ConflictError, match=r"is not paused, .*; pause or promote it"):
        control(world).resume(world.ada, name, reason="go on")
    control(world).pause(world.ada, name, reason="wait")
    with pytest.raises(ConflictError, match=r"is paused already, since .*; resume or promote it"):
        control(world).pause(world.bob, name, reason="wait")


# --- promote ---


def test_a_promotion_starts_the_next_stage_at_once(world: World) -> None:
    name = rolling(world)
    promoted = control(world).promote(world.bob, name, reason="seen enough")
    assert promoted.step == "canary 2"
    # The call has sent the lanes to every server.
    for member in ("live-1", "live-2"):
        assert world.answer_lanes(member)["canary"] == ("good-1", 0.5)
    world.run(minutes=1)
    control(world).promote(world.eve, name, reason="seen enough")
    assert world.answer_lanes() == {"live": ("good-1", 1.0)}
    assert world.until(name, S.DONE).state is S.DONE
    assert world.registry.moves == [("fraud-checkout@live", digest("good-1"))]
    assert audited(world, name).count("promote") == 2
    assert any(
        "canary 1 promoted by bob (seen enough): 50% of the answers" in m for m in world.messages_of(name)
    )


def test_a_promotion_ends_a_pause(world: World) -> None:
    name = rolling(world)
    control(world).pause(world.ada, name, reason="wait")
    assert control(world).promote(world.bob, name, reason="go").paused_at is None


@pytest.mark.parametrize("after", range(1, 60, 6))
def test_a_killed_promotion_is_complete_or_has_no_effect(world: World, after: int) -> None:
    name = rolling(world)
    world.kill_after = after
    try:
        control(world).promote(world.bob, name, reason="go")
    except Killed:
        world.reopen()
    world.kill_after = None
    step = world.get(name).step
    assert ("promote" in audited(world, name)) is (step == "canary 2")
    world.tick()
    world.tick()
    assert world.answer_lanes()["canary"] == ("good-1", {"canary 1": 0.1, "canary 2": 0.5}[step])
    assert world.until(name, S.DONE).state is S.DONE


def test_a_promotion_waits_for_servers_and_freezes(world: World) -> None:
    name = rolling(world)
    world.fleet.held("live-2").up = False
    control(world).promote(world.bob, name, reason="go")
    with pytest.raises(ConflictError, match="does not have the lanes of canary 2 yet"):
        control(world).promote(world.bob, name, reason="go")
    world.fleet.held("live-2").up = True
    world.run(minutes=1)
    freeze = NewFreeze(name="now", cron=f"{world.now.minute} {world.now.hour} * * *", minutes=60)
    world.calendar.add_freeze(world.admin, freeze)
    with pytest.raises(FrozenError, match='frozen by "now"'):
        control(world).promote(world.bob, name, reason="go")
    assert world.get(name).step == "canary 2"


def test_a_promotion_of_an_outdated_version_is_refused(world: World) -> None:
    name = rolling(world)
    version = world.get(name).version
    control(world).promote(world.bob, name, reason="go", version=version)
    with pytest.raises(ConflictError, match="has moved on"):
        control(world).promote(world.eve, name, reason="go", version=version)
    assert world.get(name).step == "canary 2"


def test_only_permitted_users_control_a_release(world: World) -> None:
    name = rolling(world)
    stranger, viewer = world.stranger, Actor("vera", {"fraud": Role.VIEWER})
    modeler = Actor("mo", {"fraud": Role.MODELER})
    for operation in ("pause", "resume", "promote"):
        with pytest.raises(NotFoundError):
            getattr(control(world), operation)(stranger, name, reason="x")
        for actor in (viewer, modeler):
            with pytest.raises(NotAllowedError):
                getattr(control(world), operation)(actor, name, reason="x")
    # Two persons approved the plan, so its author cannot shorten it.
    author = Actor("ada", {"fraud": Role.APPROVER})
    with pytest.raises(NotAllowedError, match="four eyes"):
        control(world).promote(author, name, reason="x")
    with pytest.raises(NotAllowedError, match="four eyes"):
        control(world).skip(author, name, stage=2, reason="x")
    allowed = world.changes.get(world.bob, name).allowed
    assert {"pause", "promote", "skip", "rollback"} <= set(allowed)
    assert "resume" not in allowed
    assert set(world.changes.get(world.ada, name).allowed) & {"promote", "skip"} == set()
    assert "pause" in world.changes.get(world.ada, name).allowed


def test_only_stages_of_a_release_are_controlled(world: World) -> None:
    test = world.test("good-1")
    with pytest.raises(ConflictError):
        control(world).pause(world.ada, test.id, reason="x")
    name = rolling(world)
    control(world).promote(world.bob, name, reason="x")
    world.run(minutes=1)
    world.fleet.held("live-2").up = False
    control(world).promote(world.bob, name, reason="x")
    with pytest.raises(ConflictError, match="has passed its stages"):
        control(world).pause(world.ada, name, reason="x")


# --- skip ---


def test_a_skipped_stage_is_not_entered(world: World) -> None:
    name = rolling(world, stages=(Stage(0.1, 5), Stage(0.5, 5), Stage(0.75, 5)))
    with pytest.raises(InvalidError, match="no stage 1 to come; the stages to come are 2, 3"):
        control(world).skip(world.bob, name, stage=1, reason="x")
    control(world).skip(world.bob, name, stage=2, reason="weekend")
    steps = {step.name: step.status for step in world.changes.get(world.ada, name).steps}
    assert (steps["canary 2"], steps["canary 3"]) == ("skipped", "to come")
    shares = set()
    while world.get(name).state is S.RELEASED:
        shares.add(world.answer_lanes().get("canary", ("", 0.0))[1])
        world.tick(0.5)
    assert shares == {0.1, 0.75, 0.0}
    assert world.get(name).state is S.DONE


# --- a pause in the plan ---


def test_a_stage_with_a_pause_waits_for_an_approver(world: World) -> None:
    name = rolling(world, stages=(Stage(0.1, 5, pause=True), Stage(0.5, 5)))
    world.run(minutes=120, step=5)
    held = world.get(name)
    assert (held.step, held.paused_by) == ("canary 1", "platform")
    assert world.answer_lanes()["canary"] == ("good-1", 0.1)
    with pytest.raises(ConflictError, match="waits for an approver by its plan"):
        control(world).resume(world.ada, name, reason="go")
    world.reopen()
    world.run(minutes=10)
    control(world).promote(world.bob, name, reason="go")
    assert world.until(name, S.DONE).state is S.DONE
    assert sum("waits by its plan" in message for message in world.messages_of(name)) == 1


# --- how often its gates are evaluated ---


def judged(world: World, minutes: float, step: float) -> int:
    """The evaluations of the gates of a stage in some minutes, with a tick every few seconds."""
    before = len(world.readouts.judged)
    world.run(minutes=minutes, step=step)
    return len(world.readouts.judged) - before


def test_a_stage_that_stays_inconclusive_is_not_evaluated_in_every_tick(world: World) -> None:
    name = rolling(world)
    world.bundles.names[digest("good-1")] = "vague-1"
    world.run(minutes=5)
    # A twentieth of five minutes is 15 s.
    assert judged(world, minutes=3, step=0.125) == 12
    world.bundles.names[digest("good-1")] = "good-1"
    world.run(minutes=0.375, step=0.125)
    assert world.get(name).step == "canary 2"


def test_a_stage_is_evaluated_at_its_end_at_once(world: World) -> None:
    name = rolling(world, stages=(Stage(0.1, 10), Stage(0.5, 10)))
    with world.store.read() as connection:
        mark = rows.row_of(connection, name).mark
    # Gates are due every 30 s, so with ticks of 20 s they are evaluated every 40 s, and not at the end.
    while world.now < mark + timedelta(minutes=9, seconds=40):
        world.tick(1 / 3)
    assert world.get(name).step == "canary 1"
    world.tick(1 / 3)
    assert world.get(name).step == "canary 2"


def test_a_long_stage_is_evaluated_every_minute(world: World) -> None:
    """A gate that fails rolls the release back within a minute, also in a stage of a day."""
    name = rolling(world, stages=(Stage(0.1, 24 * 60),))
    assert judged(world, minutes=5, step=0.25) == 5
    world.bundles.names[digest("good-1")] = "trap-1"
    world.run(minutes=1.25, step=0.25)
    assert world.get(name).state is S.ROLLED_BACK
    assert world.answer_lanes() == {"live": LIVE}


# --- outlook ---


def test_the_outlook_names_the_end_and_what_it_waits_for(world: World) -> None:
    name = rolling(world)
    began = world.now - timedelta(minutes=2)
    ahead = world.changes.get(world.ada, name).outlook
    assert ahead is not None
    assert (ahead.stage, ahead.stages, ahead.share, ahead.to_come) == (1, 2, 0.1, (2,))
    assert ahead.stage_ends is not None
    assert began <= ahead.stage_ends - timedelta(minutes=5) <= world.now
    assert ahead.ends == ahead.stage_ends + timedelta(minutes=5)
    control(world).pause(world.ada, name, reason="wait")
    ahead = world.changes.get(world.ada, name).outlook
    assert ahead is not None
    assert ahead.stage_ends is None
    assert ahead.waits[0].startswith("paused by ada since")
    control(world).resume(world.ada, name, reason="go")
    control(world).skip(world.bob, name, stage=2, reason="x")
    ahead = world.changes.get(world.ada, name).outlook
    assert ahead is not None
    assert ahead.ends == ahead.stage_ends


def test_the_outlook_counts_missing_rows_at_the_present_rate(world: World) -> None:
    from changing import START

    from scorer.release.changes.outlook import outlook
    from scorer.release.model import GateResult

    name = rolling(world)
    gate = GateResult("flip_rate", Outcome.INCONCLUSIVE, 0.0, None, None, 0.1, 100, "<= 0.1", "more")
    result = outlook(
        world.get(name),
        (Stage(0.1, 5), Stage(0.5, 10)),
        (gate,),
        mark=START,
        least={"flip_rate": 400},
        settling="",
        patience=timedelta(minutes=10),
        frozen=None,
        now=START + timedelta(minutes=4),
    )
    # 100 rows took 4 minutes, so the other 300 take 12 minutes.
    assert result.stage_ends == START + timedelta(minutes=16)
    assert result.ends == START + timedelta(minutes=26)
    assert any("100 of 400 rows" in one for one in result.waits)
    assert world.changes.get(world.ada, name).change.checkpoint == CHECKPOINT


def test_a_stage_whose_gate_has_failed_is_not_promoted(world: World) -> None:
    """The platform process may end between the result of a gate and the rollback that follows."""
    name = rolling(world)
    before = world.answer_lanes()
    failed = GateResult("error_rate", Outcome.FAIL, 0.5, 0.4, 0.6, 0.0, 5_000, "<= 0", "Half of them failed.")
    with world.store.write() as connection:
        rows.keep_gates(connection, name, "canary 1", [failed], world.now)
    with pytest.raises(ConflictError, match="error_rate failed in canary 1"):
        control(world).promote(world.bob, name, reason="quick")
    assert world.answer_lanes() == before
