"""Tests of the benchmark's servers: output never blocks them, and a failure is a line of the table."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loadtests import wire
from loadtests.figures import Figures, read
from loadtests.options import Options
from loadtests.peers import servers
from loadtests.peers.servers import ServerError
from scorer.loadtest.ratesearch import Found

MACHINE = {"cpu": "one", "isa": "avx2", "build_profile": "release", "caches": {}, "commit": "abc"}
# Much more than the capacity of a pipe.
TALKER = "import sys; sys.stdout.write('x' * 1_000_000); sys.stdout.flush(); open('done', 'w').close()"


def test_a_server_continues_although_its_output_is_not_read(tmp_path: Path) -> None:
    with servers.process([sys.executable, "-c", TALKER], directory=tmp_path):
        deadline = time.monotonic() + 30
        while not (tmp_path / "done").exists():
            assert time.monotonic() < deadline, "the server blocked on a write to its standard output"
            time.sleep(0.02)


def test_a_failing_peer_is_reported_and_the_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def fails(_model: Any) -> Any:
        raise ServerError("no such program")
        yield

    started: list[str] = []

    @contextmanager
    def works(_model: Any) -> Any:
        started.append("")
        yield None

    def searched(bench: wire.Bench, number: int, name: str, _load: Any) -> None:
        rounds = bench.rounds[name]
        for threshold in wire.THRESHOLDS_MS:
            rounds.found[threshold][number] = Found(1000.0 + number, generator_bound=False)
        for rate in wire.STEADY:
            rounds.steady_ms[rate][number] = 1.0

    monkeypatch.setattr(wire.Bench, "_search", searched)
    monkeypatch.setattr(wire.Bench, "_loads", lambda _bench, name, _serving: {name: None})
    monkeypatch.setattr(servers, "hosted", works)
    monkeypatch.setattr(servers, "rust", works)
    monkeypatch.setattr(wire, "PEERS", {wire.FOREST: works, wire.MLSERVER: fails})
    bench = wire.Bench(Figures(tmp_path, group="wire", machine=MACHINE), None, Options())  # type: ignore[arg-type]
    bench.measure_rounds(3)
    bench.add_figures()
    result = {figure.key: figure for figure in read(bench.figures.path).figures}
    failed = result["rounds in which MLServer could not be measured, of 3"]
    assert (failed.ours, failed.note) == (3, "no such program")
    assert result[f"highest rate with p99 ≤ 10 ms, Score, 500×6 | {wire.FOREST}"].rounds == 3
    assert not any(figure.peer == wire.MLSERVER for figure in result.values())
