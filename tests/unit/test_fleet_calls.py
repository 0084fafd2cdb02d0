"""Tests of calling many servers: bounded, in turns, and not delayed by the slow ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from waiting import PATIENCE, wait_until

from scorer.release.fleet import Fleet, Member, MemberStatus, Parallel, Statuses
from scorer.release.lanes.turns import READS_PER_SECOND, SMALL, Turns


def members(count: int) -> list[Member]:
    return [Member(f"s{at:03}", "") for at in range(count)]


class Work:
    """A call that blocks for some servers until the test lets it go."""

    def __init__(self, *blocked: str) -> None:
        self.blocked = set(blocked)
        self.go = threading.Event()
        self.begun: list[str] = []
        self.running = self.peak = 0
        self._lock = threading.Lock()

    def __call__(self, member: Member) -> str:
        with self._lock:
            self.begun.append(member.name)
            self.running += 1
            self.peak = max(self.peak, self.running)
        try:
            if member.name in self.blocked:
                assert self.go.wait(PATIENCE)
            return member.name
        finally:
            with self._lock:
                self.running -= 1


@contextmanager
def work(*blocked: str) -> Iterator[Work]:
    one = Work(*blocked)
    try:
        yield one
    finally:
        one.go.set()
        wait_until(lambda: not one.running, "all calls to end")


def test_calls_are_bounded() -> None:
    with work("s000", "s001", "s002") as one:
        parallel = Parallel(most=4, patience=PATIENCE)
        found: list[dict[str, str]] = []
        thread = threading.Thread(target=lambda: found.append(parallel(one, members(40))))
        thread.start()
        # Three of four places are taken, so the others are called one by one.
        wait_until(lambda: len(one.begun) == 40, "all servers to be called")
        assert one.peak <= 4
        one.go.set()
        thread.join(PATIENCE)
        assert len(found[0]) == 40


def test_servers_that_hang_take_no_places_and_are_not_waited_for_again() -> None:
    blocked = [f"s{at:03}" for at in range(10)]
    everyone = members(30)
    with work(*blocked) as one:
        parallel = Parallel(most=5, patience=0.05)
        # Ten servers hang, which is more than the five places.
        first = parallel(one, everyone, seconds=2.0)
        assert set(first) == {member.name for member in everyone} - set(blocked)
        # Without a time limit, the call would not return if it waited for one of them.
        second = parallel(one, everyone)
        assert set(second) == set(first)
        # At most five calls to late servers are unfinished, and the ten of before are.
        assert [name for name in one.begun if name in blocked] == blocked
        one.go.set()
        wait_until(lambda: not one.running, "the calls to end")
        # A call that ends in time shows that the server is not late any more.
        wait_until(
            lambda: len(parallel(one, everyone, seconds=5.0)) == len(everyone), "all servers to be waited for"
        )


def test_an_error_of_the_work_is_raised() -> None:
    def broken(member: Member) -> None:
        raise ZeroDivisionError(member.name)

    with pytest.raises(ZeroDivisionError, match="s000"):
        Parallel()(broken, members(1))


class FakeCalls:
    """Implements what `Statuses` uses of a fleet."""

    status_seconds = 0.2

    def __init__(self, count: int, hanging: Work) -> None:
        self.members: Any = members(count)
        self._hanging = hanging

    def status(self, member: Member) -> MemberStatus:
        self._hanging(member)
        return MemberStatus(reachable=True)


def test_a_status_that_does_not_come_is_shown_as_such() -> None:
    with work("s001") as one:
        fleet: Any = FakeCalls(3, one)
        statuses = Statuses(fleet)
        assert [status.reachable for status in statuses.known().values()] == [False] * 3
        assert "has not been asked yet" in statuses.known()["s001"].error
        assert statuses.asked() == {}
        found = statuses.look()
        assert {name: status.reachable for name, status in found.items()} == {
            "s000": True,
            "s001": False,
            "s002": True,
        }
        assert found["s001"].error == 'server "s001" has not responded in time'
        fleet.members = fleet.members[1:]
        statuses.touch()
        assert list(statuses.known()) == ["s001", "s002"]
        assert sorted(statuses.asked()) == ["s001", "s002"], "a server that has left is forgotten"


def test_a_channel_of_a_server_that_has_left_is_dropped() -> None:
    fleet = Fleet([Member("a", "127.0.0.1:1"), Member("b", "127.0.0.1:2")], status_seconds=0.2)
    for member in fleet.members:
        fleet.status(member)
    fleet.replace([Member("b", "127.0.0.1:2")])
    assert list(fleet._channels) == ["127.0.0.1:2"]
    fleet.close()


# --- turns ---


def test_every_pass_reads_a_small_fleet() -> None:
    turns = Turns(0.05)
    for _ in range(3):
        assert turns.due(members(SMALL), [], (1,)) == members(SMALL)


def test_a_large_fleet_is_read_in_turn_at_a_constant_rate() -> None:
    everyone = members(100)
    turns = Turns(0.5)
    assert turns.due(everyone, [], (1,)) == everyone, "none was read before"
    passes = [turns.due(everyone, [], (1,)) for _ in range(20)]
    assert {len(one) for one in passes} == {int(READS_PER_SECOND * 0.5)}
    for half in (passes[:10], passes[10:]):
        assert sorted(member.name for one in half for member in one) == [one.name for one in everyone]


def test_a_new_table_is_sent_to_every_server_at_once_and_only_once() -> None:
    everyone = members(100)
    turns = Turns(0.5)
    turns.due(everyone, [], (1, 7))
    assert turns.due(everyone, [], (1, 8)) == everyone
    assert len(turns.due(everyone, [], (1, 8))) == 10
    behind = everyone[40:45]
    assert set(behind) <= set(turns.due(everyone, behind, (1, 8)))


def test_servers_come_and_go() -> None:
    turns = Turns(0.5)
    turns.due(members(50), [], (1,))
    everyone = members(60)[5:]
    found = turns.due(everyone, [], (1,))
    assert set(members(60)[50:]) <= set(found), "a new server is read at once"
    assert len(found) == 20
