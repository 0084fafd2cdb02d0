"""Kills of the shipper between every two of its steps: every record is delivered once.

A step is a call that changes something outside of the process: a table is created, a commit is made, the
shipped mark moves. A kill before or after a step is an exception that nothing handles.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from logs import write_segment
from shipping import SERVER, MemorySink, delta_keys, keys_of, mixed

from scorer.ship import shipper as shipper_module
from scorer.ship.delta import DeltaSink
from scorer.ship.metrics import ShipMetrics
from scorer.ship.settings import DeltaSection
from scorer.ship.shipper import ShippedMark
from scorer.ship.sinks import Sink
from scorer.ship.source import LogSource
from scorer.ship.tables import Tables
from scorer.ship.worker import Worker


class Killed(BaseException):
    """The process ends here."""


class Steps:
    """Counts the steps of a run, and kills it at some of them.

    Args:
        kills: Returns whether to kill at a moment, by its number. Each step has a moment before and one after
            it.
    """

    def __init__(self, kills: Callable[[int], bool]) -> None:
        self.kills, self.moments = kills, 0

    def moment(self) -> None:
        self.moments += 1
        if self.kills(self.moments):
            raise Killed

    def wrap(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def step(*arguments: Any) -> Any:
            self.moment()
            result = real(*arguments)
            self.moment()
            return result

        monkeypatch.setattr(owner, name, step)


class GrowingLog:
    """A log that a server writes between the runs of a shipper."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        directory.mkdir()
        (directory / "LOCK").touch()
        self.directory, self._chance = directory, chance
        self._number, self._first, self._next = 0, 1, 1

    def grow(self) -> None:
        """Append records to the newest segment, or begin another."""
        if self._number == 0 or self._chance.random() < 0.4:
            self._number, self._first = self._number + 1, self._next
        else:
            next(self.directory.glob(f"{self._number:010}-*.seg")).unlink()
        self._next += self._chance.randrange(1, 9)
        payloads = [mixed(sequence) for sequence in range(self._first, self._next)]
        write_segment(self.directory, self._number, self._first, payloads, sealed=False)


def run(log: Path, sink: Sink, records: int) -> None:
    """One process: it ships what the log holds."""
    mark = ShippedMark(log, [sink.name])
    worker = Worker(
        LogSource(log, SERVER, max_records=records, max_bytes=1 << 20),
        sink,
        stop=threading.Event(),
        metrics=ShipMetrics(),
        say=lambda _: None,
        flush_seconds=1,
        retry_seconds=1,
        once=True,
        delivered=mark.delivered,
    )
    # In this thread, so that a kill ends it as it ends a process.
    worker.run()
    assert worker.error is None, worker.error


def run_with_kills(
    steps: Steps, sink: Callable[[], Sink], log: GrowingLog, chance: random.Random, mark: Callable[[], int]
) -> int:
    """Run processes until one ends by itself. Return the number of kills."""
    kills = 0
    while True:
        try:
            run(log.directory, sink(), chance.randrange(1, 8))
        except Killed:
            kills += 1
            assert kills < 500
            assert mark() <= log._next
            if chance.random() < 0.3:
                log.grow()
        else:
            return kills


def shipped_mark(log: Path) -> int:
    path = log / "SHIPPED"
    return int(path.read_text()) if path.exists() else 0


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    made = Steps(lambda _: False)
    made.wrap(monkeypatch, Tables, "_create")
    made.wrap(monkeypatch, Tables, "append")
    made.wrap(monkeypatch, shipper_module, "mark_shipped")
    return made


def test_a_kill_at_every_moment_of_a_run(tmp_path: Path, steps: Steps) -> None:
    """One kill per run, at each moment in turn, then a run to the end."""
    moment = 0
    while True:
        moment += 1
        directory = tmp_path / str(moment)
        directory.mkdir()
        log = GrowingLog(directory / "log", random.Random(1))
        for _ in range(4):
            log.grow()
        lake = directory / "lake"
        steps.moments, steps.kills = 0, lambda number, at=moment: number == at
        killed = False
        try:
            run(log.directory, DeltaSink(DeltaSection(url=str(lake)), SERVER), 5)
        except Killed:
            killed = True
        delivered = delta_keys(str(lake)) if (lake / "decisions").exists() else {}
        in_full = [key for key in delivered if key[2] < shipped_mark(log.directory)]
        assert len(in_full) == max(shipped_mark(log.directory) - 1, 0), "the mark is not ahead of the tables"
        steps.kills = lambda _: False
        run(log.directory, DeltaSink(DeltaSection(url=str(lake)), SERVER), 3)
        assert delta_keys(str(lake)) == keys_of(log.directory), f"killed at moment {moment}"
        assert shipped_mark(log.directory) == log._next
        if not killed:
            break
    assert moment > 20, "a run has this many moments"


@pytest.mark.parametrize("seed", range(6))
def test_many_kills_while_the_log_grows(tmp_path: Path, steps: Steps, seed: int) -> None:
    chance = random.Random(seed)
    log, lake = GrowingLog(tmp_path / "log", chance), tmp_path / "lake"
    steps.kills = lambda _: chance.random() < 0.08
    kills = 0
    for _ in range(5):
        log.grow()
        kills += run_with_kills(
            steps,
            lambda: DeltaSink(DeltaSection(url=str(lake)), SERVER),
            log,
            chance,
            lambda: shipped_mark(log.directory),
        )
    assert kills > 0
    assert delta_keys(str(lake)) == keys_of(log.directory)


@pytest.mark.parametrize("seed", range(40))
def test_the_process_itself_loses_and_doubles_nothing(tmp_path: Path, steps: Steps, seed: int) -> None:
    """Many more histories, with a sink in memory."""
    chance = random.Random(1000 + seed)
    log = GrowingLog(tmp_path / "log", chance)
    steps.kills = lambda _: chance.random() < 0.1
    sink = MemorySink(lambda _: steps.moment())
    for _ in range(12):
        log.grow()
        run_with_kills(steps, lambda: sink, log, chance, lambda: shipped_mark(log.directory))
    assert sink.rows == keys_of(log.directory)
