"""Tests of the times of nodes that the platform reads from its servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from platforms import World

from scorer.bundle.times import NodeTime


@pytest.fixture
def world(tmp_path: Path, built_bundles: dict[str, Path]) -> Iterator[World]:
    world = World(tmp_path, built_bundles)
    yield world
    world.platform.close()


def test_the_times_of_a_bundle_are_those_of_all_servers_that_respond(world: World) -> None:
    times = world.service.checkpoints.node_times
    assert times(world.live) == {}
    for name, nanos in (("live-1", 3000), ("live-2", 9000)):
        node = {"name": "margins", "kind": "forest", "nanos": nanos, "timed": 2}
        world.fleet.time_nodes(name, world.live, [node])
    world.fleet.time_nodes("pool-1", world.candidate, [{"name": "margins", "nanos": 1, "timed": 1}])
    world.tick()
    assert times(world.live) == {"margins": NodeTime(3.0, 4)}
    assert times(world.candidate) == {"margins": NodeTime(0.001, 1)}
    world.fleet.disconnect("live-2")
    world.tick()
    assert times(world.live) == {"margins": NodeTime(1.5, 2)}
