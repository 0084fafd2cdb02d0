"""Servers that answer one checkpoint at a clock that the test sets, and what a platform shows of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import components
import numpy as np
from bundles import FEATURES, rows
from observing import ADMIN, START, World
from servers import SCORE, RunningServer, settings, start_server
from waiting import wait_until

from scorer.client import Client, Score
from scorer.release.decisions import Decisions
from scorer.release.fleet import Fleet, Member
from scorer.release.model import LaneSpec
from scorer.release.requests import DecisionFilter

POINT = "fraud.checkout"
COUNT, DELAY, REPEATED, CORRECTED = 84, 10, 7, 12
DATA = rows(COUNT, seed=5)
FRAUD = np.random.default_rng(6).random(COUNT) < 0.3


@dataclass
class Shop:
    """Servers that answer the same checkpoint, and their clock."""

    clock: Path
    servers: list[RunningServer]
    clients: list[Client]
    random: np.random.Generator
    second: int = 0
    alive: list[int] = field(default_factory=list)

    def kill(self, number: int) -> None:
        """End a server as a crash would. Later calls go to the others."""
        self.servers[number].kill()
        self.alive.remove(number)

    def tick(self) -> None:
        """Set the clock of all servers to the next second."""
        self.second += 1
        following = self.clock.with_suffix(".next")
        following.write_text(f"{START + timedelta(seconds=self.second):%Y-%m-%d %H:%M:%S}\n")
        following.replace(self.clock)

    def any(self) -> int:
        return int(self.random.integers(len(self.alive)))

    def client(self, at: int) -> Client:
        """Return the client of a server that answers."""
        return self.clients[self.alive[at % len(self.alive)]]

    def score(self, number: int) -> Score:
        """Score a payment; every seventh is sent to the next server again."""
        at, answers = self.any(), []
        for turn in range(2 if number % REPEATED == 0 else 1):
            self.tick()
            client = self.client(at + turn)
            named = dict(zip(FEATURES, DATA[number].tolist(), strict=True))
            answers.append(client.score(POINT, named, request_id=f"payment-{number:03}", timeout=20))
        assert all(one.logged and one.score == answers[0].score for one in answers)
        return answers[0]

    def report(self, number: int, answer: Score) -> None:
        """Report the outcome at any server, and correct every twelfth one at another."""
        at = self.any()
        for revision in range(2 if number % CORRECTED == 0 else 1):
            self.tick()
            ack = self.client(at + revision).report_outcome(
                POINT,
                answer.decision_id,
                "fraud",
                float(FRAUD[number] != (revision == 1)),
                revision=revision,
                decision_token=answer.decision_token,
            )
            assert ack.proven

    def buy_all(self, before: Callable[[int], None] = lambda _: None) -> None:
        """Score all payments and report most outcomes; `before` is called before each payment."""
        answers: list[Score] = []
        for number in range(COUNT + DELAY):
            before(number)
            if number < COUNT:
                answers.append(self.score(number))
            if number >= DELAY and number % 5:
                self.report(number - DELAY, answers[number - DELAY])


@contextmanager
def servers(worlds: Sequence[World], folder: Path, registry: Path) -> Iterator[Shop]:
    """Run the servers of a world, each of which observes all requests. All worlds have their counters."""
    world = worlds[0]
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
        shop = Shop(clock, running, clients, np.random.default_rng(8), alive=list(range(len(running))))
        yield shop
        for member in [members[at] for at in shop.alive]:
            wait_until(lambda member=member: is_observed(fleet, member), "all requests to be observed")
            for one in worlds:
                one.fleet.set_observers(member, POINT, lanes, reason="test")
            for own in fleet.status(member).observers:
                counters = {name: own[name] for name in ("seen", "taken", "evaluated", "dropped", "shed")}
                for one in worlds:
                    one.fleet.count(member.name, POINT, own["lane"], **counters)
        for server in [running[at] for at in shop.alive]:
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
    """Collect all records of a world, and return what its platform shows."""
    world.now = START + timedelta(hours=1)
    collector = world.readouts._collector

    def is_done() -> bool:
        return not (collector.collect() or collector._resume or world.readouts._source.problems)

    wait_until(is_done, "all records to be collected")
    source = world.new_source("explorer.sqlite")
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


def figures(of: Any, *, without: Collection[str] = ()) -> dict[str, Any]:
    return {one.name: (one.columns, one.rows, one.words) for one in of.figures if one.name not in without}
