"""The load test of a graph: what the graph consists of, and a short run of every part."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from loadtests.decision_graphs import CONDITIONS, Sizes, decide_graph
from scorer.bundle import inspect
from scorer.bundle.times import measure

ROOT = Path(__file__).resolve().parents[2]


def test_the_graph_has_two_forests_20_transforms_100_rules_and_256_actions(tmp_path: Path) -> None:
    graph = decide_graph(tmp_path, Sizes(trees=3, depth=2))
    inspections = [inspect(bundle) for bundle in graph.bundles.values()]
    program = [node for one in inspections for node in one.manifest.program]
    assert [node.kind for node in program].count("forest") == 2
    assert [len(node.steps) for node in program if node.kind == "transform"] == [20]
    assert max(len(one.actions) for one in inspections) == 256
    (ruled,) = (bundle for bundle in graph.bundles.values() if (bundle / "rules.toml").exists())
    rules = tomllib.loads((ruled / "rules.toml").read_text())["rules"]
    assert len(rules) == 100
    assert {len(rule["when"].split(" && ")) for rule in rules} == {CONDITIONS}
    assert [rows.shape[1] for rows in graph.rows] == [len(one.data.features) for one in inspections]
    # The rows fit the schemas.
    assert measure(list(graph.bundles.values()), 0.0, rows=[rows[:2] for rows in graph.rows]).requests == 2


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_load_test_runs_and_prints_every_figure() -> None:
    command = [sys.executable, "-m", "loadtests.graph", "--trees", "3", "--depth", "2"]
    command += ["--seconds", "0", "--rounds", "1", "--load-seconds", "1", "--rate", "200"]
    # So long a limit that a busy machine causes no fallback.
    command += ["--sla-ms", "5000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    # The exit code is that of the targets, which depend on the machine.
    assert done.returncode in {0, 1} and not done.stderr, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    for part in (
        "alone, one thread, 512 requests: p50",
        "cost of measuring: ",
        "server at 200 requests/s: p50",
    ):
        assert sum(part in line for line in lines) == 1, done.stdout
    assert "; 0 failed, 0 fallbacks; " in done.stdout
    nodes = [line for line in lines if "mean times of" in line]
    assert len(nodes) == 4 and all(" ns" in line or " µs" in line for line in nodes), done.stdout
    assert all("mean times of 512: " in line for line in nodes[:2])
    assert all("in the server" in line for line in nodes[2:])
