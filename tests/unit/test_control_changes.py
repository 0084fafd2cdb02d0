"""Tests of the controller and the watcher with a fake data plane and a real registry."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from control_world import ACTION, FRAUD, World, alter, runs
from fakes import fake_verify, similar_contents

from scorer.control.lanes import Lane, only
from scorer.control.state import StateDirectory, StateError
from scorer.errors import (
    AmbiguousReferenceError,
    ControlUnavailableError,
    InvalidLanesError,
    InvalidReferenceError,
    LoadError,
    NothingToRestoreError,
    RegistryUnavailableError,
    ScorerError,
    SwapError,
    UnknownCheckpointError,
    UnknownReferenceError,
)
from scorer.registry import Registry


@runs
async def test_a_server_boots_from_the_registry_and_follows_it(world: World) -> None:
    controller, watcher = await world.boot()
    assert controller.is_ready()
    first = world.served()
    before = list(world.plane.calls)
    await watcher.poll()
    assert world.plane.calls == before, "a poll without a change has no effect"
    second = world.push("b", live=True)
    await watcher.poll()
    assert world.served() == second != first
    assert set(world.plane.loaded) == {first, second, world.served(ACTION)}, (
        "the previous bundle is kept for a rollback"
    )
    third = world.push("c", live=True)
    await watcher.poll()
    assert set(world.plane.loaded) == {second, third, world.served(ACTION)}
    assert controller.state.digests() == set(world.plane.loaded), "copies that are not needed are deleted"
    assert world.registry.resolve(first).path.is_dir(), "those of the registry are not deleted"


@runs
async def test_the_data_plane_gets_the_checkpoint_the_time_and_the_previous_bundle(world: World) -> None:
    controller, watcher = await world.boot()
    first = world.served()
    assert world.plane.previous == {}
    before_us = time.time_ns() // 1000
    second = world.push("b", live=True)
    await watcher.poll()
    wanted = world.plane.wanted[second]
    assert wanted is not None
    assert wanted.checkpoint == FRAUD
    assert wanted.changed_at_us is not None and wanted.noticed_at_us is not None
    # The registry records times in milliseconds.
    assert before_us - 1000 <= wanted.changed_at_us
    assert wanted.noticed_at_us <= time.time_ns() // 1000
    assert wanted.fetch_us > 0
    assert not wanted.allow_slower
    assert world.plane.previous == {FRAUD: first}
    third = world.push("c")
    await controller.set_lanes(FRAUD, [Lane("live", third, 1.0)], reason="", allow_slower=True)
    wanted = world.plane.wanted[third]
    assert wanted is not None and wanted.allow_slower and wanted.changed_at_us is None
    assert world.plane.previous == {FRAUD: second}
    await controller.rollback(FRAUD, reason="")
    assert world.plane.previous == {}, (
        "a bundle that was rolled back must not be served again without a change"
    )


@runs
async def test_a_start_loads_the_previous_bundle_and_a_rollback_loads_it_again(world: World) -> None:
    await world.boot()
    first = world.served()
    second = world.push("b", live=True)
    controller, watcher = await world.boot()
    await watcher.poll()
    assert world.served() == second
    controller, watcher = await world.boot()
    assert first not in world.plane.loaded, "the served bundle is loaded first"
    await controller.load_previous()
    assert first in world.plane.loaded
    assert world.plane.previous == {FRAUD: first}
    # The data plane unloaded it for another bundle. A rollback loads its copy again.
    del world.plane.loaded[first]
    await controller.rollback(FRAUD, reason="")
    assert world.served() == first


@runs
async def test_a_change_has_the_documented_order(world: World) -> None:
    _, watcher = await world.boot()
    first = world.served()
    second = world.push("b", live=True)
    world.plane.calls.clear()
    await watcher.poll()
    third = world.push("c", live=True)
    await watcher.poll()
    short = {digest: digest[7:11] for digest in (first, second, third)}
    assert world.plane.calls == [
        f"load {short[second]}",
        "swap 3",
        f"load {short[third]}",
        "swap 4",
        f"unload {short[first]}",
    ]


@pytest.mark.parametrize("damage", ["altered byte", "refused by load", "refused by swap", "missing file"])
def test_a_failed_candidate_changes_nothing(world: World, damage: str) -> None:
    async def scenario() -> None:
        controller, watcher = await world.boot()
        live, tables = world.served(), len(world.plane.tables)
        bad = world.push("bad", live=True)
        file = world.stored(bad) / "forest.bin"
        if damage == "altered byte":
            alter(file)
        elif damage == "missing file":
            file.unlink()
        elif damage == "refused by load":
            world.plane.refuse[bad] = "golden case 17 differs"
        else:
            world.plane.refuse_swaps = "wrong kind"
        await watcher.poll()
        assert world.served() == live
        assert len(world.plane.tables) == tables
        assert bad not in world.plane.loaded
        assert bad not in controller.state.digests()
        rejection = watcher.rejections[FRAUD]
        expected = {
            "altered byte": "altered",
            "refused by load": "golden case 17 differs",
            "refused by swap": "wrong kind",
            "missing file": "missing",
        }
        assert rejection.bundle == bad
        assert expected[damage] in rejection.reason
        (event,) = world.log.named("candidate_refused")
        assert (event["bundle"], event["reason"], event["live"]) == (bad, rejection.reason, [live])
        calls = len(world.plane.calls)
        world.push("unrelated")  # the version of the registry changes, but the alias does not
        await watcher.poll()
        await watcher.poll()
        assert len(world.plane.calls) == calls, (
            "it is not loaded again while neither the alias nor the bytes change"
        )
        assert len(world.log.named("candidate_refused")) == 1

    asyncio.run(scenario())


@runs
async def test_a_repaired_bundle_is_loaded_again(world: World) -> None:
    _, watcher = await world.boot()
    bad = world.push("bad", live=True)
    alter(world.stored(bad) / "forest.bin")
    await watcher.poll()
    assert FRAUD in watcher.rejections
    world.push("bad")  # another push replaces the damaged copy; the alias is unchanged
    await watcher.poll()
    assert world.served() == bad
    assert not watcher.rejections


@runs
async def test_a_rejection_ends_when_the_alias_moves_back(world: World) -> None:
    _, watcher = await world.boot()
    live = world.served()
    bad = world.push("bad", live=True)
    world.plane.refuse[bad] = "no"
    await watcher.poll()
    world.registry.rollback("fraud-checkout", "live")
    await watcher.poll()
    assert not watcher.rejections
    assert world.served() == live


@runs
async def test_one_bad_checkpoint_does_not_delay_the_other(world: World) -> None:
    bad = world.push("bad", live=True)
    alter(world.stored(bad) / "forest.bin")
    controller, watcher = await world.boot()
    assert not controller.is_ready()
    assert not controller.ready.is_set()
    assert world.plane.tables[-1].checkpoints[FRAUD] == ()
    assert world.served(ACTION)
    good = world.push("good", live=True)
    await watcher.poll()
    assert world.served() == good
    assert controller.ready.is_set()


@runs
async def test_an_alias_that_does_not_exist_is_reported_with_the_nearest_name(world: World) -> None:
    empty = Registry(world.base / "other", verify=fake_verify)
    source = world.base / "built-fraud-checkout-a"
    empty.alias("fraud-checkout", "lvie", empty.push(source))
    world.registry = empty
    controller, watcher = await world.boot()
    assert not controller.is_ready()
    assert 'did you mean "fraud-checkout@lvie"?' in watcher.rejections[FRAUD].reason
    assert watcher.rejections[FRAUD].bundle == "fraud-checkout@live"
    assert watcher.reachable
    empty.alias("fraud-checkout", "live", empty.push(source))
    await watcher.poll()
    assert FRAUD not in watcher.rejections


@pytest.mark.fault_case(65)
@runs
async def test_a_server_continues_and_boots_while_the_registry_is_unreachable(world: World) -> None:
    _, watcher = await world.boot()
    live, version = world.served(), world.plane.tables[-1].version
    hidden = world.base / "hidden"
    world.registry.path.rename(hidden)
    await watcher.poll()
    await watcher.poll()
    assert not watcher.reachable
    assert "does not exist" in watcher.error
    assert len(world.log.named("registry_unavailable")) == 1, "the event is logged once and not at every poll"
    assert world.served() == live

    controller, watcher = await world.boot()
    assert controller.ready.is_set()
    assert world.served() == live
    assert world.plane.tables[-1].version == version, "the same table keeps its version"
    assert watcher.delay() > controller.settings.registry.poll_ms / 1e3, "failing polls become less frequent"

    hidden.rename(world.registry.path)
    moved = world.push("b", live=True)
    await watcher.poll()
    assert watcher.reachable
    assert world.served() == moved
    assert watcher.delay() == controller.settings.registry.poll_ms / 1e3


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 9, "state": {}, "sha256": ""}']
)
def test_a_damaged_state_file_is_reported_and_replaced(world: World, content: bytes) -> None:
    async def scenario() -> None:
        controller, _ = await world.boot()
        file = controller.state.path / "last-known-good.json"
        file.write_bytes(content)
        controller, _ = await world.boot()
        assert len(world.log.named("state_unreadable")) == 1
        assert controller.is_ready()
        assert controller.state.read() is not None

    asyncio.run(scenario())


def test_every_flipped_byte_of_the_state_file_is_detected(world: World) -> None:
    async def scenario() -> None:
        controller, _ = await world.boot()
        file = controller.state.path / "last-known-good.json"
        sound = file.read_bytes()
        remembered = controller.state.read()
        for at in range(0, len(sound), 7):
            flipped = bytearray(sound)
            flipped[at] ^= 0x04
            file.write_bytes(bytes(flipped))
            with contextlib.suppress(StateError):
                assert controller.state.read() == remembered, f"a change of byte {at} was not detected"

    asyncio.run(scenario())


@runs
async def test_a_damaged_copy_is_fetched_again(world: World) -> None:
    controller, _ = await world.boot()
    live = world.served()
    alter(controller.state.bundle(live) / "forest.bin")
    controller, _ = await world.boot()
    assert "last_known_good_refused" in {record["event"] for record in world.log.all()}
    assert world.served() == live
    assert fake_verify(controller.state.bundle(live)) == live


@runs
async def test_versions_never_repeat_across_restarts(world: World) -> None:
    controller, _ = await world.boot()
    world.plane.refuse_swaps = "no"
    second = world.push("b")
    with pytest.raises(SwapError):
        await controller.set_lanes(FRAUD, only(second), reason="")
    tried = max(int(call.removeprefix("swap ")) for call in world.plane.calls if call.startswith("swap"))
    controller, _ = await world.boot()
    changed = await controller.set_lanes(FRAUD, only(second), reason="")
    assert changed.version > tried


@runs
async def test_a_manual_change_pins_until_the_alias_moves(world: World) -> None:
    controller, watcher = await world.boot()
    manual = world.push("m")
    await controller.set_lanes(FRAUD, only(manual), reason="test")
    assert controller.following[FRAUD].pinned
    world.push("unrelated")
    await watcher.poll()
    assert world.served() == manual
    controller, watcher = await world.boot()
    assert world.served() == manual, "a pin is kept after a restart"
    moved = world.push("b", live=True)
    await watcher.poll()
    assert world.served() == moved
    assert not controller.following[FRAUD].pinned


@runs
async def test_a_swap_to_the_alias_ends_a_pin(world: World) -> None:
    controller, _ = await world.boot()
    live = world.served()
    await controller.set_lanes(FRAUD, only(world.push("m")), reason="")
    await controller.set_lanes(FRAUD, only("fraud-checkout@live"), reason="")
    assert world.served() == live
    assert not controller.following[FRAUD].pinned


@runs
async def test_rollback_restores_one_checkpoint_or_the_last_change(world: World) -> None:
    controller, watcher = await world.boot()
    a, x = world.served(FRAUD), world.served(ACTION)
    with pytest.raises(NothingToRestoreError):
        await controller.rollback("", reason="")
    b = world.push("b")
    y = world.push("y", "action-authorise")
    await controller.set_lanes(FRAUD, only(b), reason="")
    await controller.set_lanes(ACTION, only(y), reason="")
    await controller.rollback("", reason="the last change was at the action checkpoint")
    assert (world.served(FRAUD), world.served(ACTION)) == (b, x)
    with pytest.raises(NothingToRestoreError):
        await controller.rollback("", reason="a repeated call must not bring the bad table back")
    await controller.rollback(FRAUD, reason="")
    assert (world.served(FRAUD), world.served(ACTION)) == (a, x)
    with pytest.raises(NothingToRestoreError):
        await controller.rollback(FRAUD, reason="")
    await watcher.poll()
    assert world.served(FRAUD) == a


@runs
async def test_rollback_of_an_alias_move_pins(world: World) -> None:
    controller, watcher = await world.boot()
    first = world.served()
    world.push("b", live=True)
    await watcher.poll()
    await controller.rollback(FRAUD, reason="")
    await watcher.poll()
    assert world.served() == first, "the alias still names the new bundle, and is not followed"


@runs
async def test_rollback_works_after_a_restart_without_the_registry(world: World) -> None:
    _, watcher = await world.boot()
    first = world.served()
    world.push("b", live=True)
    await watcher.poll()
    shutil.rmtree(world.registry.path)
    controller, _ = await world.boot()
    await controller.rollback(FRAUD, reason="")
    assert world.served() == first


@runs
async def test_set_lanes_is_all_or_nothing(world: World) -> None:
    controller, _ = await world.boot()
    table = controller.table
    good, bad = world.push("good"), world.push("bad")
    world.plane.refuse[bad] = "no"
    with pytest.raises(LoadError):
        await controller.set_lanes(FRAUD, [Lane("a", good, 0.5), Lane("b", bad, 0.5)], reason="")
    assert controller.table == table
    assert not {good, bad} & set(world.plane.loaded), "a bundle that was loaded in vain is unloaded"
    del world.plane.refuse[bad]
    await controller.set_lanes(FRAUD, [Lane("a", good[7:19], 0.5), Lane("b", bad, 0.5)], reason="")
    assert world.plane.tables[-1].checkpoints[FRAUD] == (Lane("a", good, 0.5), Lane("b", bad, 0.5))


BAD_LANES: list[tuple[str, str, list[Lane], type[ScorerError], str]] = [
    (
        "unknown checkpoint",
        "fraud.chekout",
        [Lane("live", "fraud-checkout@live", 1)],
        UnknownCheckpointError,
        "did you mean",
    ),
    ("no lanes", FRAUD, [], InvalidLanesError, "at least one"),
    ("shares", FRAUD, [Lane("a", "fraud-checkout@live", 0.5)], InvalidLanesError, "add up to 0.5"),
    ("negative", FRAUD, [Lane("a", "x", -0.5), Lane("b", "x", 1.5)], InvalidLanesError, "between 0 and 1"),
    ("not a number", FRAUD, [Lane("a", "x", float("nan"))], InvalidLanesError, "between 0 and 1"),
    ("name twice", FRAUD, [Lane("a", "x", 0.5), Lane("a", "x", 0.5)], InvalidLanesError, "twice"),
    ("bad name", FRAUD, [Lane("A b", "x", 1)], InvalidLanesError, "not allowed"),
    ("no bundle", FRAUD, [Lane("a", "", 1)], InvalidLanesError, "names no bundle"),
    ("not a reference", FRAUD, [Lane("a", "Hello", 1)], InvalidReferenceError, "names no bundle"),
    ("short prefix", FRAUD, [Lane("a", "abc", 1)], InvalidReferenceError, "too short"),
    ("unknown digest", FRAUD, [Lane("a", "sha256:" + "0" * 64, 1)], UnknownReferenceError, "no bundle"),
    (
        "unknown alias",
        FRAUD,
        [Lane("a", "fraud-checkout@liv", 1)],
        UnknownReferenceError,
        'did you mean "fraud-checkout@live"',
    ),
]


@pytest.mark.parametrize(
    ("checkpoint", "lanes", "error", "message"),
    [case[1:] for case in BAD_LANES],
    ids=[c[0] for c in BAD_LANES],
)
def test_invalid_lanes_are_refused(
    world: World, checkpoint: str, lanes: list[Lane], error: type[ScorerError], message: str
) -> None:
    async def scenario() -> None:
        controller, _ = await world.boot()
        calls = list(world.plane.calls)
        with pytest.raises(error, match="(?s).*" + message.replace("?", r"\?")):
            await controller.set_lanes(checkpoint, lanes, reason="")
        assert world.plane.calls == calls

    asyncio.run(scenario())


@pytest.mark.fault_case(63)
@runs
async def test_changes_wait_for_each_other(world: World) -> None:
    controller, _ = await world.boot()
    b, c = world.push("b"), world.push("c")
    world.plane.may_load.clear()
    world.plane.entered.clear()
    first = asyncio.create_task(controller.set_lanes(FRAUD, only(b), reason=""))
    await asyncio.to_thread(world.plane.entered.wait, 20)
    second = asyncio.create_task(controller.set_lanes(FRAUD, only(c), reason=""))
    await asyncio.sleep(0)
    assert world.plane.calls[-1] == f"load {b[7:11]}", "the second change has not started"
    world.plane.may_load.set()
    versions = [(await first).version, (await second).version]
    assert versions[1] == versions[0] + 1
    assert world.served() == c


@runs
async def test_nothing_changes_while_draining(world: World) -> None:
    controller, _ = await world.boot()
    controller.drain()
    with pytest.raises(ControlUnavailableError):
        await controller.set_lanes(FRAUD, only(world.push("b")), reason="")
    with pytest.raises(ControlUnavailableError):
        await controller.rollback("", reason="")


@pytest.mark.fault_case(69)
@runs
async def test_a_copy_that_fails_on_a_full_disk_is_repeated(world: World) -> None:
    controller, watcher = await world.boot()
    live = world.served()
    wanted = world.push("b", live=True)
    original = controller.state.stage

    def full(_source: Path, _digest: str) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    controller.state.stage = full  # type: ignore[method-assign]
    await watcher.poll()
    assert world.served() == live
    assert "No space left" in watcher.rejections[FRAUD].reason
    assert watcher.delay() > controller.settings.registry.poll_ms / 1e3
    controller.state.stage = original  # type: ignore[method-assign]
    await watcher.poll()
    assert world.served() == wanted
    assert not watcher.rejections


@runs
async def test_a_state_file_that_cannot_be_written_does_not_prevent_a_swap(world: World) -> None:
    controller, watcher = await world.boot()
    original = controller.state.write

    def full(_remembered: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    controller.state.write = full  # type: ignore[method-assign]
    wanted = world.push("b", live=True)
    await watcher.poll()
    assert world.served() == wanted
    assert len(world.log.named("state_not_saved")) == 1
    controller.state.write = original  # type: ignore[method-assign]
    await watcher.poll()
    remembered = controller.state.read()
    assert remembered is not None
    assert remembered.table == controller.table


@runs
async def test_a_digest_can_be_served_again_without_the_registry(world: World) -> None:
    controller, watcher = await world.boot()
    first = world.served()
    world.push("b", live=True)
    await watcher.poll()
    shutil.rmtree(world.registry.path)
    await controller.set_lanes(FRAUD, only(first[7:20]), reason="")
    assert world.served() == first
    with pytest.raises(RegistryUnavailableError):
        await controller.set_lanes(FRAUD, only("0000000000"), reason="")
    with pytest.raises(RegistryUnavailableError):
        await controller.set_lanes(FRAUD, only("fraud-checkout@live"), reason="")


@runs
async def test_a_state_directory_has_one_server(world: World) -> None:
    controller, _ = await world.boot()
    other = StateDirectory(controller.state.path)
    with pytest.raises(StateError, match="is used by another server"):
        other.prepare()
    controller.state.release()
    other.prepare()
    other.release()


class _Killed(BaseException):
    pass


@pytest.mark.fault_case(64)
def test_a_kill_at_any_step_of_a_swap_leaves_a_table_to_boot_from(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is killed at every fsync, rename and deletion.

    The next process serves the old or the new table.
    """
    old = world.registry.resolve("fraud-checkout@live").digest

    async def dies_at(step: int) -> bool:
        if world.state is not None:
            shutil.rmtree(world.state.path)
        world.registry.alias("fraud-checkout", "live", old)
        _, watcher = await world.boot()
        new = world.push("new", live=True)
        left = step

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **keywords: Any) -> Any:
                nonlocal left
                left -= 1
                if left <= 0:  # a killed process does nothing afterwards
                    raise _Killed
                return real(*arguments, **keywords)

            return call

        died = False
        with monkeypatch.context() as patched:
            for owner, name in (
                (os, "fsync"),
                (Path, "rename"),
                (Path, "replace"),
                (Path, "unlink"),
                (shutil, "rmtree"),
            ):
                patched.setattr(owner, name, counted(getattr(owner, name)))
            try:
                await watcher.poll()
            except _Killed:
                died = True
        away = world.base / "away"
        world.registry.path.rename(away)
        controller, _ = await world.boot()
        away.rename(world.registry.path)
        assert controller.ready.is_set(), f"step {step}"
        assert world.served() in ({old, new} if died else {new}), f"step {step}"
        assert fake_verify(world.plane.loaded[world.served()]) == world.served()
        return died

    step = 1
    while asyncio.run(dies_at(step)):
        step += 1
    assert step > 8, "the steps were counted"


@runs
async def test_an_ambiguous_prefix_is_refused(world: World) -> None:
    controller, _ = await world.boot()
    first, second = (world.push(content) for content in similar_contents(4))
    assert first[:11] == second[:11]
    with pytest.raises(AmbiguousReferenceError, match="fits 2 bundles"):
        await controller.set_lanes(FRAUD, only(first[7:11]), reason="")
