"""Tests of a managed checkpoint: what other callers may do to it, and what the server stores about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from control_world import ACTION, FRAUD, World, runs
from fakes import fake_verify

from scorer.control.lanes import Lane, only
from scorer.control.management import NOBODY, Caller
from scorer.errors import InvalidLanesError, ManagedCheckpointError, StaleLaneTableError
from scorer.registry import Registry

PLATFORM = Caller(platform="main")


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, Registry(tmp_path / "registry", verify=fake_verify))
    world.push("x", "action-authorise", live=True)
    return world


# --- compare and set ---


@pytest.mark.fault_case(63)
@runs
async def test_a_change_that_was_decided_on_an_older_table_is_refused(world: World) -> None:
    """The lane table of a stalled leader never replaces a rollback that another process made meanwhile."""
    first = world.push("a", live=True)
    controller, _ = await world.boot()
    second = world.push("b")
    seen_by_leader = controller.table.version
    seen_by_other = controller.table.version
    await controller.set_lanes(FRAUD, [Lane("live", second, 1.0)], reason="", expected=seen_by_other)
    newest = controller.table.version
    with pytest.raises(StaleLaneTableError, match=f"is {newest} now, and the change was decided on"):
        await controller.set_lanes(FRAUD, [Lane("live", first, 1.0)], reason="", expected=seen_by_leader)
    with pytest.raises(StaleLaneTableError):
        await controller.set_observers(
            FRAUD, [Lane("s", first, sample=1.0)], reason="", expected=seen_by_leader
        )
    with pytest.raises(StaleLaneTableError):
        await controller.rollback(FRAUD, reason="", expected=seen_by_leader)
    assert controller.table.version == newest
    assert world.served() == second


@runs
async def test_a_change_of_the_active_table_is_accepted(world: World) -> None:
    first = world.push("a", live=True)
    controller, _ = await world.boot()
    changed = await controller.set_observers(
        FRAUD, [Lane("s", first, sample=1.0)], reason="", expected=controller.table.version
    )
    await controller.set_lanes(
        FRAUD, [Lane("live", world.push("b"), 1.0)], reason="", expected=changed.version
    )
    await controller.rollback(FRAUD, reason="", expected=controller.table.version)
    assert world.served() == first


# --- management ---


@runs
async def test_other_callers_are_refused_at_a_managed_checkpoint(world: World) -> None:
    first, second = world.push("a", live=True), world.push("b")
    controller, _ = await world.boot()
    await controller.set_lanes(FRAUD, [Lane("live", second, 1.0)], reason="")
    await controller.manage(FRAUD, "main", caller=PLATFORM, reason="")
    version = controller.table.version
    for caller in (NOBODY, Caller(platform="other")):
        with pytest.raises(ManagedCheckpointError, match='managed by the platform "main"'):
            await controller.set_lanes(FRAUD, [Lane("live", first, 1.0)], reason="now", caller=caller)
        for checkpoint in (FRAUD, ""):
            with pytest.raises(ManagedCheckpointError):
                await controller.rollback(checkpoint, reason="now", caller=caller)
        with pytest.raises(ManagedCheckpointError):
            await controller.manage(FRAUD, caller.platform, caller=caller, reason="mine")
    assert controller.table.version == version
    await controller.set_lanes(FRAUD, [Lane("live", first, 1.0)], reason="", caller=PLATFORM)
    assert world.served() == first
    assert not controller.break_glass


@runs
async def test_break_glass_requires_a_reason_and_is_recorded(world: World) -> None:
    world.push("a", live=True)
    second = world.push("b")
    controller, _ = await world.boot()
    await controller.manage(FRAUD, "main", caller=PLATFORM, reason="")
    glass = Caller(break_glass=True, by="ada")
    with pytest.raises(InvalidLanesError, match="takes a --reason"):
        await controller.set_lanes(FRAUD, [Lane("live", second, 1.0)], reason=" ", caller=glass)
    await controller.set_lanes(FRAUD, [Lane("live", second, 1.0)], reason="platform is down", caller=glass)
    kept = controller.break_glass[FRAUD]
    assert (kept.by, kept.reason, kept.lane_table) == ("ada", "platform is down", controller.table.version)
    (event,) = world.log.named("break_glass")
    assert (event["level"], event["by"], event["managed_by"]) == ("error", "ada", "main")
    again, _ = await world.boot()
    assert again.break_glass[FRAUD] == kept
    assert again.managed == {FRAUD: "main"}


@runs
async def test_an_alias_that_is_moved_by_others_is_drift_and_is_not_followed(world: World) -> None:
    first = world.push("a", live=True)
    controller, watcher = await world.boot()
    await controller.manage(FRAUD, "main", caller=PLATFORM, reason="")
    second = world.push("b", live=True)
    await watcher.poll()
    await watcher.poll()
    assert controller.table.checkpoints[FRAUD] == only(first)
    assert watcher.drifts == {FRAUD: second}
    (event,) = world.log.named("alias_drift")
    assert (event["points_to"], event["serving"]) == (second, [first])
    # The same holds after a restart. The alias of the other checkpoint is still followed.
    action = world.push("y", "action-authorise", live=True)
    again, watcher = await world.boot()
    assert again.table.checkpoints[FRAUD] == only(first)
    assert again.table.checkpoints[ACTION] == only(action)
    assert watcher.drifts == {FRAUD: second}
    # When the platform releases the bundle, the drift ends.
    await again.set_lanes(FRAUD, [Lane("live", second, 1.0)], reason="", caller=PLATFORM)
    await watcher.poll()
    assert watcher.drifts == {}


@runs
async def test_a_move_of_the_alias_by_the_platform_is_not_drift(world: World) -> None:
    world.push("a", live=True)
    controller, watcher = await world.boot()
    await controller.manage(FRAUD, "main", caller=PLATFORM, reason="")
    second = world.push("b")
    await controller.set_lanes(FRAUD, [Lane("live", second, 1.0)], reason="", caller=PLATFORM)
    version = controller.table.version
    world.registry.alias("fraud-checkout", "live", second)
    await watcher.poll()
    assert watcher.drifts == {}
    assert controller.table.version == version


@runs
async def test_the_platform_ends_its_management_and_the_next_move_of_the_alias_is_followed(
    world: World,
) -> None:
    first = world.push("a", live=True)
    controller, watcher = await world.boot()
    await controller.manage(FRAUD, "main", caller=PLATFORM, reason="")
    second = world.push("b", live=True)
    await watcher.poll()
    await controller.manage(FRAUD, "", caller=PLATFORM, reason="retired")
    await watcher.poll()
    assert controller.table.checkpoints[FRAUD] == only(first)
    assert watcher.drifts == {}
    third = world.push("c", live=True)
    await watcher.poll()
    assert controller.table.checkpoints[FRAUD] == only(third)
    assert second not in controller.table.bundles()


@runs
async def test_a_managed_checkpoint_without_lanes_serves_the_bundle_of_its_alias(world: World) -> None:
    """After the loss of every copy, no lanes are left to protect, so the bundle of the alias is served."""
    controller, watcher = await world.boot()
    await controller.manage(FRAUD, "main", caller=PLATFORM, reason="")
    first = world.push("a", live=True)
    await watcher.poll()
    assert controller.table.checkpoints[FRAUD] == only(first)
