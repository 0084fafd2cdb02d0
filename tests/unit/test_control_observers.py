"""Tests of observe lanes in the controller: separate from answer lanes, atomic, restored after restarts."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from control_world import ACTION, FRAUD, World, alter, runs
from fakes import FakeDataPlane, fake_bundle

from scorer.control.filters import OPERATORS, parse_filter
from scorer.control.lanes import Lane, LaneTable, only
from scorer.control.state import FILE, StateDirectory
from scorer.errors import (
    ControlUnavailableError,
    InvalidLanesError,
    LoadError,
    NothingToRestoreError,
    ScorerError,
    SwapError,
    UnknownCheckpointError,
    UnknownReferenceError,
)

FILTER = '[{"feature": "amount", "op": ">=", "value": 100}]'


def shadow(name: str, bundle: str, sample: float = 0.5, *, pool: bool = False) -> Lane:
    return Lane(name, bundle, sample=sample, filter=FILTER, pool=pool)


@runs
async def test_setting_observe_lanes_changes_no_answer_lane(world: World) -> None:
    controller, watcher = await world.boot()
    answer = controller.table.checkpoints
    before, following = world.plane.previous, dict(controller.following)
    b, c = world.push("b"), world.push("c")
    lanes = [shadow("cr-000001", b[7:19]), shadow("cr-000002", c)]
    changed = await controller.set_observers(FRAUD, lanes, reason="cr-000001 table 1")
    table = world.plane.tables[-1]
    assert table.version == changed.version == controller.table.version
    assert table.checkpoints == answer
    assert table.observe == {FRAUD: (shadow("cr-000001", b), shadow("cr-000002", c))}
    assert table.to_dict()["observe"][FRAUD][0] == {
        "name": "cr-000001",
        "bundle": b,
        "sample": 0.5,
        "filter": [{"feature": "amount", "op": ">=", "value": 100}],
        "pool": False,
    }
    assert (world.plane.previous, dict(controller.following)) == (before, following)
    wanted = world.plane.wanted[b]
    assert wanted is not None and wanted.checkpoint is None, "its latency is measured while it observes"
    assert {b, c} <= set(world.plane.loaded)
    (event,) = world.log.named("observing")
    assert event["reason"] == "cr-000001 table 1"
    await watcher.poll()
    assert world.plane.tables[-1] is table, "an observe lane follows no alias"
    ended = await controller.set_observers(FRAUD, [], reason="over")
    assert ended.previous == table.observe[FRAUD]
    assert world.plane.tables[-1].observe == {}
    assert "observe" not in world.plane.tables[-1].to_dict()
    assert not {b, c} & set(world.plane.loaded)
    assert not {b, c} & controller.state.digests()


@runs
async def test_a_repeated_call_changes_nothing(world: World) -> None:
    controller, _ = await world.boot()
    b = world.push("b")
    first = await controller.set_observers(FRAUD, [shadow("a", b)], reason="")
    calls = list(world.plane.calls)
    again = await controller.set_observers(FRAUD, [shadow("a", b[7:19])], reason="")
    assert again.version == first.version
    assert (await controller.set_observers(ACTION, [], reason="")).version == first.version
    assert world.plane.calls == calls
    other = await controller.set_observers(FRAUD, [shadow("a", b, 0.25)], reason="")
    assert other.version > first.version
    assert world.plane.calls == [*calls, f"swap {other.version}"], "a new sampling rate loads no bundle"


@runs
async def test_changes_of_answer_lanes_keep_observe_lanes(world: World) -> None:
    controller, watcher = await world.boot()
    first, b = world.served(), world.push("b")
    control = Lane("aa", first, sample=0.5)
    await controller.set_observers(FRAUD, [shadow("cr-000001", b), control], reason="")
    observe = world.plane.tables[-1].observe
    second = world.push("c", live=True)
    await watcher.poll()
    assert world.served() == second
    assert world.plane.tables[-1].observe == observe, "the A/A control follows no alias"
    third = world.push("d")
    await controller.set_lanes(FRAUD, [Lane("live", second, 0.9), Lane("canary", third, 0.1)], reason="")
    assert world.plane.tables[-1].observe == observe
    await controller.rollback(FRAUD, reason="")
    assert world.served() == second
    assert world.plane.tables[-1].observe == observe
    assert first in world.plane.loaded, "the lane still observes"
    assert third not in world.plane.loaded


@runs
async def test_changes_of_observe_lanes_do_not_affect_rollbacks(world: World) -> None:
    controller, _ = await world.boot()
    first, second = world.served(), world.push("b")
    await controller.set_lanes(FRAUD, only(second), reason="")
    await controller.set_observers(FRAUD, [shadow("a", world.push("c"))], reason="")
    await controller.set_observers(ACTION, [shadow("a", world.push("y", "action-authorise"))], reason="")
    assert first in world.plane.loaded
    assert world.plane.previous == {FRAUD: first}
    await controller.rollback("", reason="the last change of answer lanes")
    assert world.served() == first
    assert set(world.plane.tables[-1].observe) == {FRAUD, ACTION}


@runs
async def test_a_bundle_can_move_between_observe_and_answer_lanes(world: World) -> None:
    controller, _ = await world.boot()
    first, b = world.served(), world.push("b")
    await controller.set_observers(FRAUD, [shadow("cr-000001", b)], reason="")
    world.plane.refuse[b] = "takes three times as long as what answers"
    with pytest.raises(LoadError, match="three times"):
        await controller.set_lanes(
            FRAUD, only(b), reason="its latency was not compared when it was loaded to observe"
        )
    assert world.served() == first
    assert (b in world.plane.loaded, b in controller.state.digests()) == (True, True), (
        "the lane continues to observe"
    )
    del world.plane.refuse[b]
    await controller.set_lanes(FRAUD, only(b), reason="released")
    wanted = world.plane.wanted[b]
    assert wanted is not None and wanted.checkpoint == FRAUD
    await controller.set_observers(FRAUD, [], reason="")
    assert world.served() == b
    calls = len(world.plane.calls)
    await controller.rollback(FRAUD, reason="")
    assert world.served() == first
    assert not [call for call in world.plane.calls[calls:] if call.startswith("load")], (
        "the lane still exists"
    )


@pytest.mark.parametrize("damage", ["load", "swap", "unknown", "altered"])
def test_observers_are_all_or_nothing(world: World, damage: str) -> None:
    async def scenario() -> None:
        controller, _ = await world.boot()
        good, bad = world.push("good"), world.push("bad")
        table = controller.table
        name: str = bad
        expected: type[ScorerError] = LoadError
        if damage == "load":
            world.plane.refuse[bad] = "golden case 17 differs"
        elif damage == "swap":
            world.plane.refuse_swaps, expected = "wrong kind", SwapError
        elif damage == "unknown":
            name, expected = "sha256:" + "0" * 64, UnknownReferenceError
        else:
            alter(world.stored(bad) / "forest.bin")
        with pytest.raises(expected):
            await controller.set_observers(FRAUD, [shadow("a", good), shadow("b", name)], reason="")
        assert controller.table == world.plane.tables[-1] == table
        assert not {good, bad} & set(world.plane.loaded)
        assert not {good, bad} & controller.state.digests()
        assert (await world.boot())[0].table.observe == {}

    asyncio.run(scenario())


@runs
async def test_a_lane_of_the_pool_is_stored_on_a_live_server_and_loaded_by_the_pool(world: World) -> None:
    controller, _ = await world.boot()
    b = world.push("b")
    await controller.set_observers(FRAUD, [shadow("cr-000001", b, pool=True)], reason="")
    assert b not in world.plane.loaded
    assert b not in controller.state.digests()
    assert world.plane.tables[-1].to_dict()["observe"][FRAUD][0]["pool"] is True


BAD = [
    ("unknown checkpoint", "fraud.chekout", [Lane("a", "x", sample=1)], UnknownCheckpointError, "did you"),
    ("no sample", FRAUD, [Lane("a", "x")], InvalidLanesError, "sample 0; a sample is above 0, to 1"),
    ("above 1", FRAUD, [Lane("a", "x", sample=1.01)], InvalidLanesError, "above 0, to 1"),
    ("negative", FRAUD, [Lane("a", "x", sample=-0.5)], InvalidLanesError, "above 0, to 1"),
    ("not a number", FRAUD, [Lane("a", "x", sample=float("nan"))], InvalidLanesError, "above 0, to 1"),
    ("share", FRAUD, [Lane("a", "x", 0.5, sample=1)], InvalidLanesError, "answers nothing"),
    ("the live lane", FRAUD, [Lane("live", "x", sample=1)], InvalidLanesError, "another name"),
    ("an answer lane", FRAUD, [Lane("canary", "x", sample=1)], InvalidLanesError, "answer and observe"),
    ("twice", FRAUD, [Lane("a", "x", sample=1), Lane("a", "x", sample=1)], InvalidLanesError, "twice"),
    ("bad name", FRAUD, [Lane("A b", "x", sample=1)], InvalidLanesError, "not allowed"),
    ("no bundle", FRAUD, [Lane("a", "", sample=1)], InvalidLanesError, "names no bundle"),
    ("filter", FRAUD, [Lane("a", "x", sample=1, filter="{")], InvalidLanesError, "the filter is no JSON"),
    ("feature", FRAUD, [Lane("a", "x", sample=1, filter='[{"feature": "amuont", "op": "missing"}]')],
     InvalidLanesError, 'has no feature "amuont"; did you mean "amount"'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("checkpoint", "lanes", "error", "message"), [c[1:] for c in BAD], ids=[c[0] for c in BAD]
)
def test_invalid_observe_lanes_are_refused(
    world: World, checkpoint: str, lanes: list[Lane], error: type[ScorerError], message: str
) -> None:
    async def scenario() -> None:
        controller, _ = await world.boot()
        live = world.served()
        await controller.set_lanes(
            FRAUD, [Lane("live", live, 0.9), Lane("canary", world.push("c"), 0.1)], reason=""
        )
        schema = {"features": [{"name": "amount"}, {"name": "country"}]}
        (controller.state.bundle(live) / "schema.json").write_text(json.dumps(schema))
        calls, table = list(world.plane.calls), controller.table
        with pytest.raises(error) as caught:
            await controller.set_observers(checkpoint, lanes, reason="")
        assert message in str(caught.value)
        assert (world.plane.calls, controller.table) == (calls, table)

    asyncio.run(scenario())


@runs
async def test_answer_lanes_cannot_use_names_of_observe_lanes(world: World) -> None:
    controller, _ = await world.boot()
    live = world.served()
    for lane in (
        Lane("live", live, 1, sample=0.5),
        Lane("live", live, 1, filter="[]"),
        Lane("live", live, 1, pool=True),
    ):
        with pytest.raises(InvalidLanesError, match="scorer observe"):
            await controller.set_lanes(FRAUD, [lane], reason="")
    await controller.set_observers(FRAUD, [Lane("b", live, sample=1)], reason="")
    with pytest.raises(InvalidLanesError, match='"b" would answer and observe'):
        await controller.set_lanes(FRAUD, [Lane("a", live, 0.5), Lane("b", live, 0.5)], reason="")


@runs
async def test_names_of_observe_lanes_do_not_prevent_a_rollback(world: World) -> None:
    controller, _ = await world.boot()
    live = world.served()
    await controller.set_lanes(FRAUD, [Lane("a", live, 0.5), Lane("b", live, 0.5)], reason="")
    await controller.set_lanes(FRAUD, only(live), reason="")
    with pytest.raises(InvalidLanesError, match='"b" would answer and observe'):
        await controller.set_observers(FRAUD, [Lane("b", live, sample=1)], reason="")


@runs
async def test_a_draining_server_accepts_no_observe_lanes(world: World) -> None:
    controller, _ = await world.boot()
    controller.drain()
    with pytest.raises(ControlUnavailableError):
        await controller.set_observers(FRAUD, [], reason="")


# --- the shadow pool ---


@runs
async def test_the_pool_observes_and_does_not_answer(world: World) -> None:
    world.settings = world.settings.replace("[checkpoints", '[server]\nrole = "shadow"\n[checkpoints', 1)
    world.make_plane = FakePool
    b = world.push("b")
    controller, watcher = await world.boot()
    assert controller.is_ready() and controller.ready.is_set()
    (table,) = world.plane.tables
    assert not any(table.checkpoints.values()) and not table.observe, "the pool follows no alias"
    calls = list(world.plane.calls)
    assert watcher.reachable, "the pool polls the registry nevertheless"
    world.push("c", live=True)
    await watcher.poll()
    assert world.plane.calls == calls
    with pytest.raises(InvalidLanesError, match="shadow pool and answers nobody"):
        await controller.set_lanes(FRAUD, only(b), reason="")
    with pytest.raises(InvalidLanesError, match="shadow pool and answers nobody"):
        await controller.rollback(FRAUD, reason="")
    with pytest.raises(NothingToRestoreError):
        await controller.rollback("", reason="")
    lanes = (shadow("cr-000001", b, pool=True),)
    await controller.set_observers(FRAUD, lanes, reason="")
    table = world.plane.tables[-1]
    assert (table.checkpoints, table.observe) == ({FRAUD: (), ACTION: ()}, {FRAUD: lanes})
    assert set(world.plane.loaded) == {b}
    assert table.to_dict(in_pool=True)["observe"][FRAUD][0]["pool"] is False, (
        "the lane is evaluated on this server"
    )
    # The lanes exist again after a restart without the registry.
    world.registry.path.rename(world.base / "gone")
    controller, _ = world.new_process()
    await controller.restore()
    assert controller.ready.is_set()
    await controller.restore_observers()
    assert controller.table.observe == {FRAUD: lanes}
    assert set(world.plane.loaded) == {b}


@runs
async def test_a_live_server_accepts_lanes_of_the_pool_and_keeps_no_copy_of_their_bundles(
    world: World,
) -> None:
    controller, _ = await world.boot()
    built = world.base / "built-fraud-checkout-b"
    fake_bundle(built, content="b")
    schema = b'{"features": [{"name": "velocity"}, {"name": "amount"}]}'
    (built / "schema.json").write_bytes(schema)
    manifest = json.loads((built / "manifest.json").read_bytes())
    manifest["files"]["schema.json"] = {"sha256": hashlib.sha256(schema).hexdigest(), "bytes": len(schema)}
    (built / "manifest.json").write_text(json.dumps(manifest))
    b = world.push("b")
    lane = shadow("cr-000001", b, pool=True)
    await controller.set_observers(FRAUD, [lane], reason="")
    expected = {FRAUD: (replace(lane, reads=("amount", "velocity")),)}
    assert world.plane.tables[-1].observe == expected
    assert world.plane.tables[-1].to_dict()["observe"][FRAUD][0]["reads"] == ["amount", "velocity"]
    assert b not in world.plane.loaded
    assert b not in controller.state.digests()
    version = controller.table.version
    assert (await controller.set_observers(FRAUD, [lane], reason="again")).version == version
    # The lanes exist again after a restart without the registry.
    world.registry.path.rename(world.base / "gone")
    controller, _ = world.new_process()
    await controller.restore()
    await controller.restore_observers()
    assert controller.table.observe == expected


class FakePool(FakeDataPlane):
    def __init__(self) -> None:
        super().__init__()
        self.is_pool = True


# --- restarts ---


@runs
async def test_after_a_restart_answer_lanes_are_restored_before_observe_lanes(world: World) -> None:
    controller, _ = await world.boot()
    live, b, c = world.served(), world.push("b"), world.push("c")
    await controller.set_observers(FRAUD, [shadow("a", b), shadow("p", c, pool=True)], reason="")
    before = controller.table
    world.registry.path.rename(world.base / "gone")
    controller, _ = world.new_process()
    await controller.restore()
    assert controller.ready.is_set()
    assert world.served() == live
    assert world.plane.tables[-1].observe == {}
    assert b not in world.plane.loaded, "the served bundle is loaded first"
    await controller.restore_observers()
    assert controller.table.observe == before.observe == world.plane.tables[-1].observe
    versions = [table.version for table in world.plane.tables]
    assert versions == sorted({*versions}) and before.version < versions[0], (
        "a version never identifies two tables"
    )
    tables = len(world.plane.tables)
    await controller.restore_observers()
    assert len(world.plane.tables) == tables
    # Another restart reads what this process wrote.
    controller, _ = world.new_process()
    await controller.restore()
    await controller.restore_observers()
    assert controller.table.observe == before.observe


@runs
async def test_observe_lanes_survive_a_crash_before_their_bundles_are_loaded(world: World) -> None:
    controller, _ = await world.boot()
    b = world.push("b")
    await controller.set_observers(FRAUD, [shadow("a", b)], reason="")
    controller, watcher = world.new_process()
    await controller.restore()
    moved = world.push("c", live=True)
    await watcher.poll()
    assert world.served() == moved
    assert b in controller.state.digests(), "its copy is kept for the observe lane"
    controller, _ = world.new_process()
    await controller.restore()
    await controller.restore_observers()
    assert controller.table.observe == {FRAUD: (shadow("a", b),)}
    assert world.served() == moved


@pytest.mark.parametrize("damage", ["load", "copy and registry", "swap"])
def test_observe_lanes_that_cannot_be_restored_are_omitted(world: World, damage: str) -> None:
    async def scenario() -> None:
        controller, _ = await world.boot()
        live, good, bad = world.served(), world.push("good"), world.push("bad")
        await controller.set_observers(FRAUD, [shadow("good", good), shadow("bad", bad)], reason="")
        controller, _ = world.new_process()
        left = {"bad"}
        if damage == "load":
            world.plane.refuse[bad] = "golden case 17 differs"
        elif damage == "copy and registry":
            alter(controller.state.bundle(bad) / "forest.bin")
            alter(world.stored(bad) / "forest.bin")
        await controller.restore()
        if damage == "swap":
            world.plane.refuse_swaps, left = "the live bundle has no such feature", {"good", "bad"}
        await controller.restore_observers()
        world.plane.refuse_swaps = None
        assert {event["lane"] for event in world.log.named("observer_left_out")} == left
        assert world.served() == live
        kept = {lane.name for lane in controller.table.observe.get(FRAUD, ())}
        assert kept == {"good", "bad"} - left
        assert set(world.plane.loaded) == {live, world.served(ACTION)} | ({good} if kept else set())
        controller, _ = world.new_process()
        await controller.restore()
        await controller.restore_observers()
        assert {lane.name for lane in controller.table.observe.get(FRAUD, ())} == kept, (
            "the load is not retried forever"
        )

    asyncio.run(scenario())


@runs
async def test_a_damaged_copy_of_an_observing_bundle_is_fetched_again(world: World) -> None:
    controller, _ = await world.boot()
    b = world.push("b")
    await controller.set_observers(FRAUD, [shadow("a", b)], reason="")
    alter(controller.state.bundle(b) / "forest.bin")
    controller, _ = world.new_process()
    await controller.restore()
    await controller.restore_observers()
    assert controller.table.observe == {FRAUD: (shadow("a", b),)}


@runs
async def test_a_checkpoint_that_was_removed_from_the_settings_has_no_observe_lanes(world: World) -> None:
    controller, _ = await world.boot()
    await controller.set_observers(ACTION, [shadow("a", world.push("y", "action-authorise"))], reason="")
    world.settings = world.settings.partition('[checkpoints."action.authorise"]')[0]
    controller, _ = world.new_process()
    await controller.restore()
    await controller.restore_observers()
    assert controller.table.observe == {}


OLD_STATE = """{
 "format": 1,
 "sha256": "f38e9b27982bb4952349b035049e8bce07ce9f97fe384cd7fbd343fd20c2555b",
 "state": {
  "table": {
   "version": 7,
   "checkpoints": {
    "fraud.checkout": [
     {
      "name": "live",
      "bundle": "sha256:abababababababababababababababababababababababababababababababab",
      "share": 1.0
     }
    ]
   }
  },
  "before": {},
  "changed_last": ["fraud.checkout"],
  "following": {
   "fraud.checkout": {
    "alias": "fraud-checkout@live",
    "digest": "sha256:abababababababababababababababababababababababababababababababab",
    "pinned": true
   }
  },
  "reserved": 9
 }
}
"""


def test_state_files_of_versions_without_observe_lanes_are_read(tmp_path: Path) -> None:
    digest = "sha256:" + "ab" * 32
    (tmp_path / FILE).write_text(OLD_STATE)
    read = StateDirectory(tmp_path).read()
    assert read is not None
    assert read.table == LaneTable(7, {FRAUD: only(digest)}, {})
    assert (read.reserved, read.pending, read.following[FRAUD].pinned) == (9, {}, True)


# --- filters ---


@pytest.mark.parametrize(
    ("text", "conditions"),
    [
        ("", []),
        ("  ", []),
        ("[]", []),
        (
            '[{"feature": "amount", "op": "<", "value": 1e3}, {"op": "missing", "feature": "country"}]',
            [{"feature": "amount", "op": "<", "value": 1000.0}, {"feature": "country", "op": "missing"}],
        ),
        (
            '[{"feature": "country", "op": "in", "value": ["NL", "BE"]}]',
            [{"feature": "country", "op": "in", "value": ["NL", "BE"]}],
        ),
        (
            '[{"feature": "new", "op": "==", "value": true}]',
            [{"feature": "new", "op": "==", "value": True}],
        ),
    ],
)
def test_valid_filters_are_accepted(text: str, conditions: list[object]) -> None:
    assert parse_filter(text) == conditions


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("amount > 100", "no JSON"),
        ('{"feature": "amount", "op": "missing"}', "no list"),
        ('["amount"]', 'condition 1 of the filter is not made of "feature"'),
        (
            '[{"feature": "a", "op": "missing"}, {"op": "missing"}]',
            "condition 2 of the filter names no feature",
        ),
        ('[{"feature": "a", "op": "=", "value": 1}]', 'operator "="; use one of =='),
        ('[{"feature": "a", "op": ">=", "value": "1"}]', 'takes a number, not "1"'),
        ('[{"feature": "a", "op": "<", "value": true}]', "takes a number, not true"),
        ('[{"feature": "a", "op": "<", "value": NaN}]', "takes a number"),
        ('[{"feature": "a", "op": "=="}]', "not null"),
        ('[{"feature": "a", "op": "==", "value": [1]}]', "not [1]"),
        ('[{"feature": "a", "op": "in", "value": []}]', "not empty"),
        ('[{"feature": "a", "op": "in", "value": "NL"}]', "takes a list"),
        ('[{"feature": "a", "op": "present", "value": 1}]', "takes no value"),
        ('[{"feature": "a", "op": "==", "value": 1, "not": true}]', "not made of"),
        ('[{"feature": "a", "op": ["=="], "value": 1}]', "operator"),
    ],
)
def test_invalid_filters_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidLanesError) as caught:
        parse_filter(text)
    assert message in str(caught.value)


def test_every_operator_is_documented() -> None:
    from scorer.control import filters

    assert all(op in (filters.__doc__ or "") for op in OPERATORS)
