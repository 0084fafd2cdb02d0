"""Tests of ``scorer observe``, and of observe lanes in ``lanes`` and ``status``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_server import Served
from control_world import FRAUD
from servers import Outcome, scorer_in_process

FILTER = '[{"feature": "amount", "op": ">=", "value": 100}]'


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    try:
        yield served
    finally:
        served.close()


def cli(served: Served, *arguments: str) -> Outcome:
    return scorer_in_process(*arguments, "--address", served.address)


def rows(done: Outcome) -> list[list[str]]:
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_observe_lanes_are_set_shown_and_removed(served: Served) -> None:
    b = served.world.push("b")
    lanes = (f"shadow={b}:0.25", "aa=fraud-checkout@live:1e-1")
    done = cli(served, "observe", FRAUD, *lanes, "--filter", FILTER, "-m", "a try")
    assert [FRAUD, "shadow", b[7:19], "0.25", *FILTER.split(), "this", "server"] in rows(done)
    assert ["aa", served.first[7:19], "0.1", *FILTER.split(), "this", "server"] in rows(done)
    assert [FRAUD, "score", "live", served.first[7:19], "1", "follows", "fraud-checkout@live"] in rows(done)
    assert served.world.log.named("observing")[-1]["reason"] == "a try"
    assert rows(cli(served, "lanes", FRAUD)) == rows(done)
    document = json.loads(cli(served, "lanes", "--json").stdout)
    (observers,) = [c["observers"] for c in document["checkpoints"] if c["checkpoint"] == FRAUD]
    assert [(lane["name"], lane["sample"], lane["filter"]) for lane in observers] == [
        ("shadow", 0.25, FILTER),
        ("aa", 0.1, FILTER),
    ]
    done = cli(served, "observe", FRAUD, f"shadow={b[7:19]}:1", "--pool")
    assert [FRAUD, "shadow", b[7:19], "1", "-", "shadow", "pool"] in rows(done)
    assert b not in served.world.plane.loaded
    done = cli(served, "observe", FRAUD, "--none")
    assert "observes" not in done.stdout
    assert served.controller.table.observe == {}


def test_the_status_shows_the_counts_of_observe_lanes(served: Served) -> None:
    b = served.world.push("b")
    assert "observes" not in cli(served, "status").stdout
    cli(served, "observe", FRAUD, f"shadow={b}:0.25")
    lane = {"checkpoint": FRAUD, "lane": "shadow", "bundle": b, "taken": 1000, "evaluated": 990,
            "exec_p50_us": 12.4, "exec_p99_us": 40.6, "exec_p999_us": 81.0, "cpu_seconds": 0.25}  # fmt: skip
    lost = {"dropped": 3, "shed": 7, "failed": {"panic": 2}, "unlogged": 1, "waiting": 5}
    served.world.plane.extra_status = {"observers": [lane | lost]}
    table = rows(cli(served, "status"))
    assert [
        *[FRAUD, "shadow", "5", "waiting", "1000", "990"],
        *[
            "3",
            "dropped,",
            "7",
            "shed,",
            "1",
            "unlogged,",
            "2",
            "panic",
            "12",
            "/",
            "41",
            "/",
            "81",
            "0.2",
            "s",
        ],
    ] in table
    assert [b[7:19], "fraud-checkout", "observes"] in [row[:3] for row in table]
    served.world.plane.extra_status = {
        "observers": [lane | {"stuck": True}],
        "pool": {"address": "10.0.0.1:7710", "error": "connection refused", "sent": 9, "dropped": 2},
    }
    shown = cli(served, "status").stdout
    assert "STUCK" in shown
    assert "shadow pool 10.0.0.1:7710: NOT connected: connection refused; 9 sent, 2 dropped here" in shown
    assert json.loads(cli(served, "status", "--json").stdout)["observers"][0]["stuck"] is True


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "or --none"),
        (["a=b:0.5", "--none"], 2, "or --none"),
        (["live"], 1, "write NAME=BUNDLE:SAMPLE"),
        (["a=ab12cd34:much"], 1, "write NAME=BUNDLE:SAMPLE"),
        (["a=fraud-checkout@live:0"], 1, "a sample is above 0, to 1"),
        (["a=fraud-checkout@live:1.5"], 1, "a sample is above 0, to 1"),
        (["a=fraud-checkout@liev:1"], 1, "did you mean"),
        (["a=fraud-checkout@live:1", "--filter", "amount > 3"], 1, "the filter is no JSON"),
    ],
)
def test_errors_name_the_fault(served: Served, arguments: list[str], code: int, message: str) -> None:
    done = cli(served, "observe", FRAUD, *arguments)
    assert (done.returncode, served.controller.table.observe) == (code, {})
    assert message in done.stderr
    assert "Traceback" not in done.stderr
