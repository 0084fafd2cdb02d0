"""Test that the platform shows the traffic of three servers as it shows that of one server.

The same requests and outcomes go to one real server and to three, in the same seconds of a clock that the
test sets. Requests and outcomes reach random servers, and some requests are sent to two of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import components
import numpy as np
import pytest
from bundles import FEATURES, rows
from observing import ADMIN, START, World
from servers import SCORE, RunningServer, settings, start_server
from waiting import wait_until

from scorer.client import Client, Score
from scorer.log.source.indexed import IndexedLogs
from scorer.registry import Registry
from scorer.release.decisions import Decisions
from scorer.release.fleet import Fleet, Member
from scorer.release.fleet.logs import log_directories
from scorer.release.model import LaneSpec
from scorer.release.requests import DecisionFilter
from scorer.token_keys import add_key

POINT = "fraud.checkout"
COUNT, DELAY, REPEATED, CORRECTED = 84, 10, 7, 12
DATA = rows(COUNT, seed=5)
FRAUD = np.random.default_rng(6).random(COUNT) < 0.3
OF_A_SERVER = ("server", "lane_table", "exec_us", "data_load_us")
"""Fields of a decision that differ between two servers that decide the same request."""
TIMED = {"execution", "data-load", "latency", "coverage", "drops"}
"""Figures of a report that show times of a run, or that count a repeated request at both servers."""


@dataclass
class Shop:
    """Servers that answer the same checkpoint, and their clock."""

    clock: Path
    servers: list[RunningServer]
    clients: list[Client]
    random: np.random.Generator
    second: int = 0
    repeated: int = 0

    def tick(self) -> None:
        """Set the clock of all servers to the next second."""
        self.second += 1
        following = self.clock.with_suffix(".next")
        following.write_text(f"{START + timedelta(seconds=self.second):%Y-%m-%d %H:%M:%S}\n")
        following.replace(self.clock)

    def any(self) -> int:
        return int(self.random.integers(len(self.clients)))

    def score(self, number: int) -> Score:
        """Score a payment; every seventh is sent to the next server again."""
        at, answers = self.any(), []
        for turn in range(2 if number % REPEATED == 0 else 1):
            self.tick()
            client = self.clients[(at + turn) % len(self.clients)]
            named = dict(zip(FEATURES, DATA[number].tolist(), strict=True))
            answers.append(client.score(POINT, named, request_id=f"payment-{number:03}", timeout=20))
        assert all(one.logged and one.score == answers[0].score for one in answers)
        return answers[0]

    def report(self, number: int, answer: Score) -> None:
        """Report the outcome at any server, and correct every twelfth one at another."""
        at = self.any()
        for revision in range(2 if number % CORRECTED == 0 else 1):
            self.tick()
            ack = self.clients[(at + revision) % len(self.clients)].report_outcome(
                POINT,
                answer.decision_id,
                "fraud",
                float(FRAUD[number] != (revision == 1)),
                revision=revision,
                decision_token=answer.decision_token,
            )
            assert ack.proven

    def buy_all(self) -> None:
        answers: list[Score] = []
        for number in range(COUNT + DELAY):
            if number < COUNT:
                answers.append(self.score(number))
            if number >= DELAY and number % 5:
                self.report(number - DELAY, answers[number - DELAY])


@contextmanager
def servers(world: World, folder: Path, registry: Path) -> Iterator[Shop]:
    """Run the servers of a world, each of which observes all requests."""
    folder.mkdir()
    clock = folder / "clock"
    clock.write_text(f"{START:%Y-%m-%d %H:%M:%S}\n")
    fake = {
        "LD_PRELOAD": str(components.faketime_library()),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "TZ": "UTC",
    }
    lanes = [
        LaneSpec("aa", world.bundles["live"].digest, "observe", sample=1.0),
        LaneSpec("cr-000001", world.bundles["own"].digest, "observe", sample=1.0),
    ]
    with ExitStack() as stack:
        running, clients = [], []
        for name in world.servers:
            (folder / name).mkdir()
            keys = registry.parent / "keys.json"
            text = settings(
                f'{SCORE}durability = "written"\n[outcomes]\ntoken_keys = "{keys}"\n',
                registry=f'path = "{registry}"',
                log=f'dir = "{world.logs[name].path}"',
            )
            running.append(stack.enter_context(start_server(folder / name, text, env=fake)))
            clients.append(stack.enter_context(Client(running[-1].address, timeout=30)))
        members = [Member(name, one.control) for name, one in zip(world.servers, running, strict=True)]
        fleet = Fleet(members)
        stack.callback(fleet.close)
        for member in members:
            fleet.set_observers(member, POINT, lanes, reason="test")
        yield Shop(clock, running, clients, np.random.default_rng(8))
        for member in members:
            wait_until(lambda member=member: is_observed(fleet, member), "all requests to be observed")
            world.fleet.set_observers(member, POINT, lanes, reason="test")
            for one in fleet.status(member).observers:
                counters = {name: one[name] for name in ("seen", "taken", "evaluated", "dropped", "shed")}
                world.fleet.count(member.name, POINT, one["lane"], **counters)
        for server in running:
            assert server.stop() == 0, server.transcript()


def is_observed(fleet: Fleet, member: Member) -> bool:
    observers = fleet.status(member).observers
    return bool(observers) and all(one["taken"] == one["evaluated"] for one in observers)


@dataclass(frozen=True)
class Shown:
    """What the platform shows of a fleet."""

    report: Any
    listed: list[dict[str, Any]]
    metrics: Any
    single: dict[str, Any]
    servers: set[str]


def shown(world: World) -> Shown:
    world.now = START + timedelta(hours=1)
    while world.readouts._collector.collect():
        pass
    source = IndexedLogs(lambda: log_directories(world.fleet), world.root / "explorer.sqlite")
    access: Any = world.access
    explorer = Decisions(
        source,
        access,
        world.local,  # type: ignore[arg-type]
        world.settings,
        outcomes=world.readouts.outcomes,
    )
    try:
        listed: list[dict[str, Any]] = []
        cursor = None
        while True:
            page = explorer.search(ADMIN, POINT, DecisionFilter(), cursor=cursor, limit=10)
            listed += [dict(one) for one in page.items]
            cursor = page.next
            if cursor is None:
                break
        single = dict(explorer.find(ADMIN, f"payment-{CORRECTED:03}"))
    finally:
        explorer.close()
    return Shown(
        world.readouts.readout(ADMIN, world.change.id),
        listed,
        world.metrics.metrics(ADMIN, POINT, start=START, end=START + timedelta(minutes=10)),
        single,
        {str(one["server"]) for one in listed},
    )


def figures(of: Any, *, without: set[str]) -> dict[str, Any]:
    return {one.name: (one.columns, one.rows, one.words) for one in of.figures if one.name not in without}


def untimed(summary: Any) -> dict[str, Any]:
    return {key: value for key, value in summary.items() if key not in ("execution", "data_load", "lag")}


@pytest.mark.timeout(300)
def test_three_servers_are_shown_as_one(tmp_path: Path, built_bundles: dict[str, Path]) -> None:
    registry = Registry(tmp_path / "registry")
    registry.alias("fraud-checkout", "live", registry.push(built_bundles["score-1"]))
    registry.push(built_bundles["score-2"])
    add_key(tmp_path / "keys.json")
    found: dict[int, Shown] = {}
    repeated = -(-COUNT // REPEATED)
    for count in (1, 3):
        names = [f"live-{number}" for number in range(1, count + 1)]
        (tmp_path / f"of-{count}").mkdir()
        world = World(
            tmp_path / f"of-{count}", built_bundles["score-1"], built_bundles["score-2"], servers=names
        )
        (world.root / "logs").mkdir()
        with servers(world, tmp_path / f"servers-{count}", tmp_path / "registry") as shop:
            shop.buy_all()
        found[count] = shown(world)
    alone, together = found[1], found[3]
    assert together.servers == {"live-1", "live-2", "live-3"}

    def plain(rows_: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{key: one[key] for key in one if key not in OF_A_SERVER} for one in rows_]

    # The list has each payment once, with the outcome that any server received.
    assert plain(together.listed) == plain(alone.listed)
    assert [one["decision_id"] for one in alone.listed] == [f"payment-{n:03}" for n in reversed(range(COUNT))]
    assert sum(bool(one["outcomes"]) for one in alone.listed) == sum(
        1 for n in range(COUNT) if (n + DELAY) % 5
    )
    reports = [[(one["value"], one["revision"], one["counts"]) for one in of.single["outcomes"]] for of in
               (alone, together)]  # fmt: skip
    assert reports[0] == reports[1] and len(reports[0]) == 2

    # The report is of the same decisions. A repeated request was taken by the lanes of both servers.
    assert figures(together.report, without=TIMED) == figures(alone.report, without=TIMED)
    assert together.report.rows == alone.report.rows == COUNT
    assert together.report.examples == alone.report.examples
    counts = [of.report.summary.pop("counts") for of in (alone, together)]
    sources = [of.report.summary.pop("sources") for of in (alone, together)]
    counters = [of.report.summary.pop("counters") for of in (alone, together)]
    by_server = [of.report.summary.pop("servers") for of in (alone, together)]
    assert untimed(together.report.summary) == untimed(alone.report.summary)
    assert counts[0]["taken"] == counters[0]["taken"] == COUNT
    assert counters[1]["taken"] == COUNT + repeated
    assert counts[1]["taken"] == counts[1]["observed"] == COUNT + repeated
    assert (set(sources[0]), set(sources[1])) == ({"live-1"}, together.servers)
    assert (set(by_server[1]), sum(by_server[1].values())) == (together.servers, COUNT)
    assert [(one.metric, one.outcome) for one in together.report.gates] == [
        (one.metric, one.outcome) for one in alone.report.gates
    ]

    # So are the figures over time.
    timed = {"execution", "data-load"}
    assert figures(together.metrics, without=timed) == figures(alone.metrics, without=timed)
    assert together.metrics.rows == alone.metrics.rows == COUNT
    assert any(row for row in figures(alone.metrics, without=timed)["outcomes"][1])
