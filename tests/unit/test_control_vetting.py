"""Tests of quarantine and protection against rollbacks in the control plane, with a fake data plane."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from control_world import ACTION, FRAUD, SETTINGS, World, runs

from scorer.control.lanes import Lane
from scorer.errors import LoadError
from scorer.registry import Registry


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    from fakes import fake_verify

    world = World(tmp_path, Registry(tmp_path / "registry", verify=fake_verify))
    world.push("a", "action-authorise", live=True)
    yield world
    if world.state is not None:
        world.state.release()


def _released(world: World, *releases: int) -> list[str]:
    """Push bundles of these releases. No alias names them."""
    return [world.push(f"release {release}") for release in releases]


def _report(world: World, digests: list[str], *releases: int) -> None:
    world.plane.releases |= dict(zip(digests, releases, strict=True))


@pytest.mark.fault_case(67)
@runs
async def test_a_bundle_that_fails_repeatedly_is_withdrawn_and_never_served_again(world: World) -> None:
    good = world.push("good", live=True)
    controller, watcher = await world.boot()
    bad = world.push("bad", live=True)
    await watcher.poll()
    assert world.served() == bad
    world.plane.breakers[bad] = "open"
    await controller.quarantine.add_failing()
    assert world.served() == good
    assert controller.vetting.quarantine[bad].by == "breaker"
    assert world.plane.quarantined == 1
    assert bad not in world.plane.loaded
    # The bundle is refused although the alias names it, after a restart, and by a command.
    for _ in range(2):
        await watcher.poll()
        assert world.served() == good
        with pytest.raises(LoadError, match="is in quarantine"):
            await controller.set_lanes(FRAUD, [Lane("live", bad, 1.0)], reason="again")
        controller, watcher = await world.boot()
    assert [event["bundle"] for event in world.log.named("quarantined")] == [bad]


@pytest.mark.fault_case(67)
@runs
async def test_only_the_failing_lane_of_several_is_removed(world: World) -> None:
    good = world.push("good", live=True)
    controller, _ = await world.boot()
    bad, other = _released(world, 2, 3)
    lanes = [Lane("live", good, 0.6), Lane("new", bad, 0.2), Lane("more", other, 0.2)]
    await controller.set_lanes(FRAUD, lanes, reason="test")
    world.plane.breakers[bad] = "half_open"
    await controller.quarantine.add_failing()
    kept = {lane.name: lane.share for lane in world.plane.tables[-1].checkpoints[FRAUD]}
    assert kept == pytest.approx({"live": 0.75, "more": 0.25})


@runs
async def test_a_failing_bundle_without_a_replacement_stays_and_is_reported_once(world: World) -> None:
    only = world.push("only", live=True)
    controller, _ = await world.boot()
    world.plane.breakers[only] = "open"
    for _ in range(3):
        await controller.quarantine.add_failing()
    assert world.served() == only
    assert not controller.vetting.quarantine
    assert len(world.log.named("not_withdrawn")) == 1


@pytest.mark.fault_case(67)
@runs
async def test_the_quarantine_removes_a_bundle_from_a_managed_checkpoint_and_reports_it(world: World) -> None:
    good = world.push("good", live=True)
    controller, watcher = await world.boot()
    bad = world.push("bad", live=True)
    await watcher.poll()
    from scorer.control.management import Caller

    await controller.manage(FRAUD, "https://platform", caller=Caller("https://platform"), reason="")
    assert await controller.quarantine.add(bad, by="ann", reason="drift") == ()
    assert world.served() == good
    assert controller.break_glass[FRAUD].by == "ann"


@runs
async def test_a_bundle_may_be_served_again_after_its_quarantine_is_lifted(world: World) -> None:
    good = world.push("good", live=True)
    controller, _ = await world.boot()
    bad = world.push("bad")
    await controller.quarantine.add(bad, by="ann", reason="by hand")
    with pytest.raises(LoadError, match="by hand, by ann"):
        await controller.set_lanes(FRAUD, [Lane("live", bad, 1.0)], reason="")
    assert await controller.quarantine.digest_of(bad[:15]) == bad
    assert await controller.quarantine.lift(bad, by="ann", reason="")
    assert not await controller.quarantine.lift(bad, by="ann", reason="")
    await controller.set_lanes(FRAUD, [Lane("live", bad, 1.0)], reason="")
    assert world.served() == bad != good


@runs
async def test_a_damaged_file_is_reported_and_replaced(world: World) -> None:
    bad = world.push("bad", live=True)
    controller, _ = await world.boot()
    await controller.quarantine.add(bad, by="ann", reason="x")
    (world.base / "state" / "vetting.json").write_bytes(b'{"format": 1, "quarantine": {')
    controller, _ = await world.boot()
    assert "vetting.json" in world.log.named("vetting_unreadable")[0]["error"]
    assert world.served() == bad
    await controller.quarantine.add(bad, by="ann", reason="x")
    assert bad in (world.base / "state" / "vetting.json").read_text()


@pytest.mark.fault_case(57)
@runs
async def test_an_alias_that_moves_to_an_older_release_is_not_followed(world: World) -> None:
    two, three, one = _released(world, 2, 3, 1)
    world.registry.alias("fraud-checkout", "live", two)
    controller, watcher = world.new_process()
    _report(world, [one, two, three], 1, 2, 3)
    await controller.restore()
    await watcher.poll()
    world.registry.alias("fraud-checkout", "live", three)
    await watcher.poll()
    world.registry.alias("fraud-checkout", "live", one)
    await watcher.poll()
    assert world.served() == three
    assert "release 1, and release 3 has been served" in watcher.rejections[FRAUD].reason
    # The lowest release is kept after a restart, and the last known good bundle loads in any case.
    controller, watcher = world.new_process()
    _report(world, [one, two, three], 1, 2, 3)
    await controller.restore()
    await watcher.poll()
    assert world.served() == three
    assert FRAUD in watcher.rejections


@pytest.mark.fault_case(57)
@runs
async def test_a_rollback_and_an_allowed_downgrade_are_accepted(world: World) -> None:
    two, three, one = _released(world, 2, 3, 1)
    world.registry.alias("fraud-checkout", "live", two)
    controller, watcher = world.new_process()
    _report(world, [one, two, three], 1, 2, 3)
    await controller.restore()
    await watcher.poll()
    world.registry.alias("fraud-checkout", "live", three)
    await watcher.poll()
    await controller.rollback(FRAUD, reason="three is wrong")
    assert world.served() == two
    with pytest.raises(LoadError):
        await controller.set_lanes(FRAUD, [Lane("live", one, 1.0)], reason="")
    assert world.served() == two
    await controller.set_lanes(FRAUD, [Lane("live", one, 1.0)], reason="", allow_rollback=True)
    assert world.served() == one


@pytest.mark.fault_case(57)
@runs
async def test_a_withdrawn_canary_does_not_raise_the_lowest_release(world: World) -> None:
    two, three = _released(world, 2, 3)
    world.registry.alias("fraud-checkout", "live", two)
    controller, watcher = world.new_process()
    _report(world, [two, three], 2, 3)
    await controller.restore()
    await watcher.poll()
    await controller.set_lanes(FRAUD, [Lane("live", two, 0.9), Lane("new", three, 0.1)], reason="")
    await controller.set_lanes(FRAUD, [Lane("live", two, 1.0)], reason="")
    assert controller.vetting.floors(FRAUD) == {"fraud-checkout": 2}


@pytest.mark.fault_case(57)
@runs
async def test_the_settings_define_the_lowest_release_and_can_allow_every_release(world: World) -> None:
    (one,) = _released(world, 1)
    world.registry.alias("fraud-checkout", "live", one)
    world.settings = SETTINGS + '[bundles]\nminimum_release = { "fraud-checkout" = 2 }\n'
    controller, watcher = world.new_process()
    _report(world, [one], 1)
    await controller.restore()
    await watcher.poll()
    assert world.plane.tables[-1].checkpoints[FRAUD] == ()
    assert world.plane.tables[-1].checkpoints[ACTION]
    assert "release 2 has been served" in watcher.rejections[FRAUD].reason
    world.settings = SETTINGS + "[bundles]\nallow_rollback = true\n"
    controller, watcher = world.new_process()
    controller.vetting.served(FRAUD, [{"signed": {"name": "fraud-checkout", "release": 9}}])
    _report(world, [one], 1)
    await watcher.poll()
    assert world.served() == one


@runs
async def test_the_data_plane_gets_the_expected_name_of_the_alias(world: World) -> None:
    live = world.push("live", live=True)
    await world.boot()
    wanted = world.plane.wanted[live]
    assert wanted is not None
    assert (wanted.name, wanted.known) == ("fraud-checkout", False)


@runs
async def test_a_bundle_is_verified_before_the_server_keeps_a_copy(world: World) -> None:
    """A bundle that the data plane refuses was only in the staging directory and is deleted from it."""
    world.push("good", live=True)
    controller, watcher = await world.boot()
    seen: list[tuple[str, Path, bool]] = []
    load = world.plane.load

    def watched(path: Path, digest: str, *rest: object) -> object:
        seen.append((digest, path, controller.state.bundle(digest).exists()))
        return load(path, digest, *rest)  # type: ignore[arg-type]

    world.plane.load = watched  # type: ignore[assignment]
    bad = world.push("bad", live=True)
    world.plane.refuse[bad] = "no trusted key signed it"
    await watcher.poll()
    ((digest, path, kept),) = seen
    assert digest == bad and not kept and path.parent == controller.state.path / "staging"
    assert not list(path.parent.glob("*")) and bad not in controller.state.digests()
    next_one = world.push("next", live=True)
    await watcher.poll()
    assert world.served() == next_one in controller.state.digests()
    assert not seen[-1][2] and not list(path.parent.glob("*"))
