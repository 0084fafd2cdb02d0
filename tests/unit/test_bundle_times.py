"""Tests of the times of nodes: measured here, read from servers, shown by the command and in the drawing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import rows, tiny_action_bundle, tiny_score_bundle
from servers import scorer_in_process

from scorer.bundle import inspect
from scorer.bundle.graph import GraphNode, program_graph, time_text, to_dicts, to_dot
from scorer.bundle.rules import BundleRules
from scorer.bundle.times import NodeTime, measure, total_times
from scorer.errors import BundleError
from scorer.web.program_drawing import BOX_WIDTH, draw_program

RULES = """
name = "review"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "large"
when = "amount > 100.0"
decision = "review"
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    folder = tmp_path_factory.mktemp("times")
    tiny_score_bundle(folder / "score", rules=BundleRules(RULES))
    tiny_action_bundle(folder / "action")
    yield {"score": folder / "score", "action": folder / "action"}


def slots(directory: Path) -> list[str]:
    return [node.output for node in inspect(directory).manifest.program]


@pytest.mark.parametrize("kind", ["score", "action"])
def test_every_node_of_a_bundle_is_measured_on_its_golden_cases(built: dict[str, Path], kind: str) -> None:
    found = measure([built[kind]], 0.0)
    (nodes,) = found.nodes
    assert list(nodes) == slots(built[kind])
    # One pass over the 256 golden cases.
    assert found.requests == len(found.plain_us) == len(found.timed_us) == 256
    assert {time.timed for time in nodes.values()} == {256}
    assert all(time.mean_us > 0 for time in nodes.values())
    # The nodes are parts of the measured evaluations.
    assert sum(time.mean_us for time in nodes.values()) <= np.mean(found.timed_us)
    assert len(found.ratios()) == 1


def test_a_request_is_one_row_of_each_bundle(built: dict[str, Path]) -> None:
    found = measure([built["score"], built["action"]], 0.0, rows=[rows(6), rows(3)])
    assert found.requests == len(found.plain_us) == 6
    assert [{time.timed for time in nodes.values()} for nodes in found.nodes] == [{6}, {6}]
    assert [list(nodes) for nodes in found.nodes] == [slots(built["score"]), slots(built["action"])]


def test_a_measurement_refuses_what_it_cannot_evaluate(built: dict[str, Path], tmp_path: Path) -> None:
    score = built["score"]
    with pytest.raises(BundleError, match="rows: 1 bundles need as many buffers of rows"):
        measure([score], 0.0, rows=[])
    with pytest.raises(BundleError, match="rows: 3 values are no whole number of rows of 4"):
        measure([score], 0.0, rows=[np.zeros(3, np.float32)])
    with pytest.raises(BundleError, match="row 1: "):
        measure([score], 0.0, rows=[np.array([[1, 1, 1, 1], [np.inf, 1, 1, 1]], np.float32)])
    for seconds in (-1.0, float("nan"), 601.0):
        with pytest.raises(BundleError, match="choose between 0 and 600"):
            measure([score], seconds)
    with pytest.raises(BundleError, match="manifest"):
        measure([tmp_path], 0.0)


def test_the_command_adds_the_time_of_each_node(built: dict[str, Path]) -> None:
    score = str(built["score"])
    plain = scorer_in_process("bundle", "graph", score, "--format", "json")
    done = scorer_in_process("bundle", "graph", score, "--times", "--seconds", "0", "--format", "json")
    assert done.returncode == 0, done.stderr
    nodes = json.loads(done.stdout)
    assert nodes[0]["kind"] == "request" and nodes[0]["time"] is None
    assert [node["time"]["timed"] for node in nodes[1:]] == [256] * (len(nodes) - 1)
    assert "rules" in {node["kind"] for node in nodes}
    # Without the option, the output is as before.
    without = [{key: value for key, value in node.items() if key != "time"} for node in nodes]
    assert without == json.loads(plain.stdout)
    table = scorer_in_process("bundle", "graph", score, "--times", "--seconds", "0").stdout
    assert "time" in table.splitlines()[1] and (" ns" in table or " µs" in table)
    dot = scorer_in_process("bundle", "graph", score, "--times", "--seconds", "0", "--format", "dot").stdout
    assert dot.count(" ns") + dot.count("µs") == len(nodes) - 1
    refused = scorer_in_process("bundle", "graph", score, "--server", "127.0.0.1:1")
    assert refused.returncode == 1 and "add --times" in refused.stderr


def test_times_of_several_servers_are_added_up() -> None:
    one = [{"name": "margins", "kind": "forest", "nanos": 3000, "timed": 2}]
    other = [
        {"name": "margins", "kind": "forest", "nanos": 9000, "timed": 1},
        {"name": "score", "kind": "link", "nanos": 0, "timed": 0},
    ]
    assert total_times([one, other, []]) == {"margins": NodeTime(4.0, 3), "score": NodeTime(0.0, 0)}


@pytest.mark.parametrize(
    ("micros", "text"),
    [(0.0421, "42.1 ns"), (0.9996, "1 µs"), (3.14159, "3.14 µs"), (999.6, "1 ms"), (12_345.0, "12.3 ms")],
)
def test_a_time_has_three_digits(micros: float, text: str) -> None:
    assert time_text(micros) == text


def graph_of(directory: Path) -> tuple[GraphNode, ...]:
    inspection = inspect(directory)
    return program_graph(inspection.manifest.program, len(inspection.data.columns))


def test_the_drawing_shows_the_times_and_parts_of_measured_nodes(built: dict[str, Path]) -> None:
    nodes = graph_of(built["action"])
    assert not draw_program(nodes).is_timed
    times = {"margins": NodeTime(3.0, 50), "probability": NodeTime(1.0, 50), "action": NodeTime(0.0, 0)}
    assert set(times) <= {node.writes for node in nodes}
    drawn = draw_program(nodes, times)
    assert drawn.is_timed
    shown = {one.node.writes: (one.time, one.timed, one.bar) for one in drawn.nodes}
    assert shown["margins"] == ("3 µs", 50, BOX_WIDTH * 3 // 4)
    assert shown["probability"] == ("1 µs", 50, BOX_WIDTH // 4)
    assert shown["action"] == shown["row"] == ("", 0, 0)
    # Without measurements, the text forms are as without times.
    unmeasured: dict[str, Any] = {"margins": NodeTime(0.0, 0)}
    assert to_dot(nodes, unmeasured) == to_dot(nodes)
    assert "time" not in to_dicts(nodes)[0]
