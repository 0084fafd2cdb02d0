"""The times of nodes from a real server: its description, its status, and the command that shows them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundles import tiny_action_bundle, tiny_score_bundle
from servers import ACTION, SCORE, RunningServer, scorer_in_process, settings, start_server

from scorer.bundle.times import total_times
from scorer.client import Client
from scorer.registry import Registry
from scorer.release.fleet import Fleet, Member

FRAUD, SELECT = "fraud.checkout", "action.authorise"
ROW = {"amount": 40.0, "hour": 15.0, "count_24h": 1.0, "distance": 2.0}
TIMED = 61
MOST_THREADS = 64


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bundles")
    tiny_score_bundle(folder / "score")
    tiny_action_bundle(folder / "action")
    tiny_score_bundle(folder / "other", variant=2)
    return {name: folder / name for name in ("score", "action", "other")}


@pytest.fixture(scope="module")
def server(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    directory = tmp_path_factory.mktemp("server")
    registry = Registry(directory / "registry")
    registry.alias("fraud-checkout", "live", registry.push(bundles["score"]))
    registry.alias("action-authorise", "live", registry.push(bundles["action"]))
    with start_server(directory, settings(SCORE + ACTION)) as running:
        yield running


def test_a_server_states_the_times_of_the_nodes_of_decisions(
    server: RunningServer, bundles: dict[str, Path]
) -> None:
    with Client(server.address, timeout=20.0) as client:
        client.wait_ready()
        before = client.describe(FRAUD)
        assert before.nodes[0].kind == "forest"
        assert before.nodes[-1].kind == "threshold"
        assert {(node.mean_us, node.timed) for node in before.nodes} == {(0.0, 0)}
        # Each thread measures one of its decisions in 61, whichever threads answer.
        for _ in range(MOST_THREADS):
            for _ in range(TIMED):
                client.score(FRAUD, ROW)
            nodes = client.describe(FRAUD).nodes
            if nodes[0].timed:
                break
        assert len({node.timed for node in nodes}) == 1 and nodes[0].timed > 0
        assert all(node.mean_us > 0 for node in nodes)
        assert {node.timed for node in client.describe(SELECT).nodes} == {0}

    shown = scorer_in_process(
        "bundle", "graph", str(bundles["score"]), "--times", "--server", server.address, "--format", "json"
    )
    assert shown.returncode == 0, shown.stderr
    times = {node["writes"]: node["time"] for node in json.loads(shown.stdout)}
    assert times.pop("row") is None
    assert times == {node.name: {"mean_us": node.mean_us, "timed": node.timed} for node in nodes}

    other = scorer_in_process("bundle", "graph", str(bundles["other"]), "--times", "--server", server.address)
    assert other.returncode == 1
    assert "is not the first lane of a checkpoint" in other.stderr and FRAUD in other.stderr

    # The platform reads the same from the control service.
    fleet = Fleet([Member("here", server.control)])
    try:
        status = fleet.status(fleet.members[0])
    finally:
        fleet.close()
    live = {str(one["name"]): one for one in status.bundles}
    total = total_times([live["fraud-checkout"]["nodes"]])
    assert {slot: time.timed for slot, time in total.items()} == {node.name: node.timed for node in nodes}
    assert all(total[node.name].mean_us == pytest.approx(node.mean_us) for node in nodes)


def test_a_server_that_does_not_answer_is_named(bundles: dict[str, Path]) -> None:
    done = scorer_in_process("bundle", "graph", str(bundles["score"]), "--times", "--server", "127.0.0.1:1")
    assert done.returncode == 1 and "127.0.0.1:1" in done.stderr
