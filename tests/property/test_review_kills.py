"""Kills of the platform between every two steps of the review queue: cases and outcomes are there once.

A step is a transaction, or the arrival of a report at a server. A kill before or after a step is an exception
that nothing handles; then a new process opens the same database. The bookkeeping is tested here, with servers
in memory; tests/integration/test_reviews.py has real ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from reviewing import FRAUD, Queue, approve, decline

from scorer.log.scanning import Entry
from scorer.release.model import CaseDelivery, CaseState
from scorer.release.store import Store


class Killed(BaseException):
    """The process ends here."""


class Life:
    """A platform that is killed at some moments, and the log that it reads.

    Args:
        store: The database, which survives.
        kills: Returns whether to kill at a moment, by its number.
    """

    def __init__(self, store: Store, kills: Callable[[int], bool] = lambda _: False) -> None:
        self.queue = Queue(store)
        self.kills, self.moments, self.kills_so_far = kills, 0, 0
        self.log: list[Entry] = []
        self.cursor = 0
        self.wanted: dict[str, float] = {}
        """The values of decisions whose transaction was committed."""
        self._write = store.write
        store.write = self._writing  # type: ignore[method-assign]
        self.queue.servers.before = self.queue.servers.after = self.moment

    def moment(self) -> None:
        self.moments += 1
        if self.kills(self.moments):
            raise Killed

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        self.moment()
        with self._write() as connection:
            yield connection
        self.moment()

    def run(self, work: Callable[[], object]) -> bool:
        """Run a step of a process; return whether the process has survived it."""
        try:
            work()
        except Killed:
            self.kills_so_far += 1
            self.queue.open()
            return False
        return True

    # --- what processes do ---

    def collect(self, most: int = 5) -> None:
        """Read the next records, as the pass over the logs does: the cursor moves after the cases."""
        batch = self.log[self.cursor : self.cursor + most]
        self.queue.take(*batch)
        self.moment()
        self.cursor += len(batch)

    def decide(self, name: str, value: float) -> None:
        asked = decline() if value else approve()
        case = self.queue.case(name)
        try:
            self.queue.reviews.decide(self.queue.otto, case.id, asked)
        finally:
            # A kill after the commit does not undo it.
            found = self.queue.case(name)
            if found.state is CaseState.DECIDED:
                self.wanted[name] = float(found.decision == "decline")

    def end(self) -> None:
        """Let a process without kills finish everything."""
        self.kills = lambda _: False
        while self.cursor < len(self.log):
            self.collect()
        for _ in range(20):
            self.queue.reviews.deliver()
            self.queue.later(hours=1)

    def check(self) -> None:
        queue = self.queue
        ids = [one.decision_id for one in queue.cases()]
        assert sorted(ids) == sorted({entry.record.decision_id for entry in self.log})
        for name, value in self.wanted.items():
            assert queue.case(name).delivery is CaseDelivery.DELIVERED, name
            assert queue.servers.value(name) == value, name
            assert queue.history(name).count("delivered") <= queue.case(name).revision + 1
        assert set(queue.servers.recorded) == {(FRAUD, name, "review") for name in self.wanted}
        assert queue.audit.verify().problems == ()


def script(life: Life) -> Iterator[Callable[[], object]]:
    """Yield the work of a short day: records, decisions, a correction, a lost response."""
    queue = life.queue
    life.log += [queue.decision(name) for name in "abc"]
    yield life.collect
    yield lambda: life.decide("a", 1.0)
    yield queue.reviews.deliver
    life.log += [queue.decision(name) for name in "dab"]
    yield life.collect
    yield lambda: life.decide("a", 0.0)
    yield lambda: life.decide("b", 1.0)
    queue.servers.lose = 1
    yield queue.reviews.deliver
    queue.later(minutes=1)
    yield queue.reviews.deliver


def test_a_kill_at_every_moment(tmp_path: Path, migrated_sqlite: Path) -> None:
    """One kill per run, at each moment in turn; the interrupted step is repeated by another process."""
    moment = 0
    while True:
        moment += 1
        path = tmp_path / f"{moment}.sqlite"
        path.write_bytes(migrated_sqlite.read_bytes())
        store = Store(f"sqlite:///{path}")
        life = Life(store)
        life.moments, life.kills = 0, lambda number, at=moment: number == at  # type: ignore[misc]
        for work in script(life):
            if not life.run(work):
                life.run(work)
        killed = life.kills_so_far
        life.end()
        life.check()
        assert life.wanted == {"a": 0.0, "b": 1.0}
        store.close()
        if not killed:
            break
    assert moment > 20, "a run has this many moments"


@pytest.mark.parametrize("seed", range(3))
def test_many_kills_on_each_engine(store: Store, seed: int) -> None:
    chance = random.Random(seed)
    life = Life(store)
    life.kills = lambda _: chance.random() < 0.1
    queue, servers = life.queue, life.queue.servers
    for day in range(60):
        life.log += [queue.decision(f"d{day}-{n}") for n in range(chance.randrange(3))]
        if life.log and chance.random() < 0.3:
            life.log.append(queue.decision(chance.choice(life.log).record.decision_id))
        work: list[Callable[[], object]] = [life.collect, queue.reviews.deliver, queue.reviews.watch]
        known = queue.ids()
        if known:
            name, value = chance.choice(known), float(chance.random() < 0.5)
            work.append(lambda name=name, value=value: life.decide(name, value))  # type: ignore[misc]
        chance.shuffle(work)
        servers.away = {one for one in ("live-1", "live-2") if chance.random() < 0.3}
        servers.lose = int(chance.random() < 0.3)
        for one in work:
            life.run(one)
        queue.later(minutes=chance.randrange(60))
    servers.away, servers.lose = set(), 0
    life.end()
    life.check()
    assert life.kills_so_far > 10
    assert len(life.wanted) > 10
