"""Tests of checkpoints that are added to a running server and removed again, with a fake data plane."""

from __future__ import annotations

import json
from typing import Any

import pytest
from control_world import ACTION, FRAUD, World, runs

from scorer.config import InvalidSettingsError
from scorer.control import added
from scorer.control.controller import Controller
from scorer.control.lanes import Lane
from scorer.control.management import NOBODY, Caller
from scorer.errors import CheckpointExistsError, ConfigError, ManagedCheckpointError, UnknownCheckpointError

REFUND = "fraud.refund"
GIVEN = {"kind": "score", "alias": "fraud-refund@live", "p99_ms": 20}


async def add(controller: Controller, name: str = REFUND, **changed: Any) -> bool:
    given = {key: value for key, value in {**GIVEN, **changed}.items() if value is not None}
    settings = added.read(name, json.dumps(given), role=controller.role)
    _, is_new = await controller.add_checkpoint(name, settings, by="an operator", reason="a test")
    return is_new


@runs
async def test_an_added_checkpoint_follows_its_alias_and_survives_a_restart(world: World) -> None:
    controller, watcher = await world.boot()
    live = world.push("r", name="fraud-refund", live=True)
    before = world.served()
    assert await add(controller)
    assert controller.is_ready(), "it does not delay the other checkpoints"
    assert controller.table.checkpoints[REFUND] == ()
    await watcher.poll()
    assert world.served(REFUND) == live and world.served() == before

    controller, watcher = await world.boot()
    assert world.served(REFUND) == live
    assert controller.settings.checkpoints[REFUND].p99_ms == 20
    assert f"add {REFUND}" in world.plane.calls


@runs
async def test_other_checkpoints_can_be_changed_after_an_addition(world: World) -> None:
    controller, _ = await world.boot()
    await add(controller)
    second = world.push("b")
    await controller.set_lanes(FRAUD, [Lane("live", second, 1.0)], reason="")
    assert world.plane.tables[-1].checkpoints[REFUND] == ()
    await controller.rollback(FRAUD, reason="")


@runs
async def test_a_repeated_addition_has_no_effect_and_other_settings_are_refused(world: World) -> None:
    controller, _ = await world.boot()
    assert await add(controller)
    assert not await add(controller)
    with pytest.raises(CheckpointExistsError, match="other settings"):
        await add(controller, p99_ms=30)
    with pytest.raises(CheckpointExistsError, match="other settings"):
        await add(controller, name=FRAUD)
    assert world.plane.calls.count(f"add {REFUND}") == 1


@runs
async def test_a_checkpoint_that_the_data_plane_refuses_is_not_stored(world: World) -> None:
    controller, _ = await world.boot()
    world.plane.refuse[REFUND] = "too fast"
    with pytest.raises(ConfigError, match="too fast"):
        await add(controller)
    assert REFUND not in controller.table.checkpoints
    assert REFUND not in controller.settings.checkpoints
    controller, _ = await world.boot()
    assert REFUND not in controller.settings.checkpoints


@runs
async def test_after_a_restart_the_settings_file_takes_precedence(world: World) -> None:
    controller, _ = await world.boot()
    await add(controller)
    world.settings += f'[checkpoints."{REFUND}"]\nkind = "score"\nalias = "fraud-refund@next"\n'
    controller, _ = await world.boot()
    assert controller.settings.checkpoints[REFUND].alias == "fraud-refund@next"
    assert f"add {REFUND}" not in world.plane.calls
    with pytest.raises(CheckpointExistsError, match=r"scorer\.toml"):
        await controller.remove_checkpoint(REFUND, caller=NOBODY, reason="")


@runs
async def test_a_checkpoint_that_cannot_be_added_again_is_omitted_and_reported(world: World) -> None:
    controller, _ = await world.boot()
    await add(controller)
    world.push("a", live=True)
    controller, watcher = world.new_process()
    world.plane.refuse[REFUND] = "too fast"
    await controller.restore()
    await watcher.poll()
    assert REFUND not in controller.table.checkpoints
    assert world.served()
    (event,) = world.log.named("checkpoint_left_out")
    assert (event["checkpoint"], event["error"]) == (REFUND, "too fast")


@runs
async def test_a_removed_checkpoint_has_no_lanes_and_does_not_exist_after_a_restart(world: World) -> None:
    controller, watcher = await world.boot()
    world.push("r", name="fraud-refund", live=True)
    await add(controller)
    await watcher.poll()
    await controller.remove_checkpoint(REFUND, caller=NOBODY, reason="")
    await watcher.poll()
    assert world.plane.tables[-1].checkpoints[REFUND] == ()
    controller, _ = await world.boot()
    assert REFUND not in controller.table.checkpoints
    with pytest.raises(UnknownCheckpointError):
        await controller.remove_checkpoint(REFUND, caller=NOBODY, reason="")


@runs
async def test_a_removed_checkpoint_can_be_added_again(world: World) -> None:
    controller, watcher = await world.boot()
    live = world.push("r", name="fraud-refund", live=True)
    await add(controller)
    await controller.remove_checkpoint(REFUND, caller=NOBODY, reason="")
    assert await add(controller)
    await watcher.poll()
    assert world.served(REFUND) == live
    controller, _ = await world.boot()
    assert world.served(REFUND) == live


@runs
async def test_only_its_platform_may_remove_a_managed_checkpoint(world: World) -> None:
    controller, watcher = await world.boot()
    live = world.push("r", name="fraud-refund", live=True)
    await add(controller)
    await watcher.poll()
    await controller.manage(REFUND, "platform", caller=Caller("platform"), reason="")
    with pytest.raises(ManagedCheckpointError):
        await controller.remove_checkpoint(REFUND, caller=NOBODY, reason="")
    assert world.served(REFUND) == live
    await controller.remove_checkpoint(REFUND, caller=Caller("platform"), reason="")
    assert REFUND not in controller.managed


@runs
async def test_a_break_glass_event_names_the_platform_that_managed_the_checkpoint(world: World) -> None:
    controller, _ = await world.boot()
    await add(controller)
    await controller.manage(REFUND, "platform", caller=Caller("platform"), reason="")
    caller = Caller(break_glass=True, by="an operator")
    await controller.remove_checkpoint(REFUND, caller=caller, reason="the platform is gone")
    (event,) = world.log.named("break_glass")
    assert (event["managed_by"], event["by"]) == ("platform", "an operator")


@runs
async def test_a_shadow_pool_can_add_a_removed_checkpoint_again(world: World) -> None:
    world.settings = world.settings.replace("[checkpoints", '[server]\nrole = "shadow"\n[checkpoints', 1)
    controller, _ = await world.boot()
    assert await add(controller, alias=None)
    await controller.remove_checkpoint(REFUND, caller=NOBODY, reason="")
    assert await add(controller, alias=None)
    controller, _ = await world.boot()
    assert REFUND in controller.settings.checkpoints


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "at most 65,536"),
        ("[" * 60_000, "not JSON"),
        ("[]", "is not a table"),
        ("{}", "kind: required"),
        ('{"kind": "score"}', "alias: required"),
        ('{"kind": "fraud", "alias": "a@live"}', "is not one of"),
        ('{"kind": "score", "alias": "a@live", "p99": 1}', 'did you mean "p99_ms"'),
        ('{"kind": "score", "alias": "no alias"}', "alias"),
        ('{"kind": "score", "alias": "a@live", "p99_ms": 0}', "above 0"),
        ('{"kind": "action", "alias": "a@live", "fallback": {"decision": "x"}}', "fallback"),
    ],
)
def test_errors_of_settings_are_named(text: str, message: str) -> None:
    with pytest.raises(InvalidSettingsError) as caught:
        added.read(REFUND, text, role="live")
    assert message in str(caught.value)


def test_invalid_names_are_refused_and_a_shadow_pool_needs_no_alias() -> None:
    with pytest.raises(InvalidSettingsError, match="two words"):
        added.read("two words", json.dumps(GIVEN), role="live")
    assert added.read(ACTION, '{"kind": "action"}', role="shadow").alias == ""
