"""Tests of servers and a shadow pool that are unreachable during an observation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from changing import World
from hypothesis import given
from hypothesis import strategies as st

from scorer.release.errors import ConflictError, NotAllowedError, NotFoundError
from scorer.release.gates.counting import POOL, Account, account, by_source
from scorer.release.gates.evidence import Counter
from scorer.release.model import ChangeState, Outcome


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(f"sqlite:///{tmp_path}/platform.db", pool=True)
    yield world
    world.store.close()


def messages(world: World, change: str, text: str) -> list[str]:
    return [message for message in world.messages_of(change) if text in message]


def test_an_unreachable_pool_blocks_no_change_that_does_not_use_it(world: World) -> None:
    world.tick()
    world.fleet.disconnect("pool")
    change = world.test("good-1", pool=False)
    assert world.until(change.id, ChangeState.DONE).verdict is Outcome.PASS
    assert not messages(world, change.id, "pool")


def test_an_unreachable_pool_is_reported_when_a_change_that_uses_it_is_submitted(world: World) -> None:
    world.tick()
    world.fleet.disconnect("pool")
    world.tick()
    change = world.test("good-1", pool=True)
    (message,) = messages(world, change.id, "the shadow pool")
    assert "pool" in message
    assert "does not answer" in message


def test_a_server_that_is_lost_and_reachable_again_is_recorded_in_the_change(world: World) -> None:
    change = world.test("good-1", pool=False)
    world.until(change.id, ChangeState.OBSERVING)
    world.run(minutes=3)
    world.fleet.disconnect("live-2")
    world.run(minutes=3)
    assert len(messages(world, change.id, "lost live-2")) == 1
    world.fleet.reconnect("live-2")
    world.run(minutes=3)
    assert len(messages(world, change.id, "live-2 is back")) == 1
    world.fleet.restart("live-1")
    world.run(minutes=2)
    assert len(messages(world, change.id, "live-1 was restarted")) == 1


def test_a_test_whose_pool_was_lost_does_not_pass_on_its_remaining_rows(world: World) -> None:
    change = world.test("good-1", pool=True)
    world.until(change.id, ChangeState.OBSERVING)
    world.run(minutes=10)
    world.fleet.disconnect("pool")
    world.readouts.missing[change.id] = 4800
    result = world.until(change.id, ChangeState.DONE, ChangeState.REJECTED)
    assert result.verdict is Outcome.INCONCLUSIVE
    assert messages(world, change.id, "lost pool")
    assert messages(world, change.id, "4,800 were neither observed nor dropped")


def counter(at: int, server: str = "live-1", **counted: int) -> Counter:
    zero = dict.fromkeys(
        ("seen", "left_out", "taken", "dropped", "shed", "failed", "unlogged", "evaluated"), 0
    )
    return Counter(at=at, server=server, lane="cr-000001", **{**zero, **counted})


def test_a_report_counts_each_request_once() -> None:
    """The lane is in the pool: live servers take requests, and the pool's server evaluates them."""
    counters = [
        counter(1, seen=1000, left_out=500, taken=500, dropped=20, shed=10),
        counter(1, server="pool", dropped=5, evaluated=400),
    ]
    assert by_source(counters, {"pool": 400}) == {
        POOL: Account(1000, 500, 500, observed=400, dropped=25, shed=10, failed=65)
    }
    # A restart loses the counts since the last reading. The counts are never lower than the observations.
    after = account([counter(1, seen=100, taken=100)], {"live-1": 250})
    assert (after.requests, after.taken, after.failed) == (250, 250, 0)


def test_the_counts_of_each_source_are_balanced_separately() -> None:
    """Counts that the restart of one server lost do not hide the losses of another one."""
    counters = [
        counter(1, seen=900, taken=900, evaluated=900),
        counter(1, server="live-2", seen=500, taken=500, dropped=3, evaluated=300),
        counter(2, server="live-2", seen=10, taken=10, evaluated=10),
    ]
    sources = by_source(counters, {"live-1": 950, "live-2": 300})
    assert (sources["live-1"].taken, sources["live-1"].failed) == (950, 0)
    assert (sources["live-2"].taken, sources["live-2"].failed) == (510, 207)
    whole = account(counters, {"live-1": 950, "live-2": 300})
    assert whole == sources["live-1"] + sources["live-2"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["live-1", "live-2", "pool"]), *[st.integers(0, 50)] * 4), max_size=30
    ),
    st.dictionaries(st.sampled_from(["live-1", "live-2", "pool"]), st.integers(0, 400)),
)
def test_taken_equals_observed_dropped_shed_and_failed_after_any_kill(
    readings: list[tuple[str, int, int, int, int]], observed: dict[str, int]
) -> None:
    """Readings may decrease, because counters restart with their server, its pool or its lane."""
    counters = [
        counter(at, server=server, seen=taken, taken=0 if server == "pool" else taken, **rest)
        for at, (server, taken, dropped, shed, evaluated) in enumerate(readings)
        for rest in [{"dropped": dropped, "shed": shed, "evaluated": evaluated}]
    ]
    sources = by_source(counters, observed)
    for one in (*sources.values(), account(counters, observed)):
        assert one.taken == one.observed + one.dropped + one.shed + one.failed
        assert min(one.as_dict().values()) >= 0
        assert one.taken <= one.eligible <= one.requests
    assert sum(one.observed for one in sources.values()) == sum(observed.values())


def test_only_a_draft_can_be_deleted(world: World) -> None:
    world.tick()
    draft = world.changes.draft(world.ada, world.draft_of("good-1"))
    with pytest.raises(NotAllowedError):
        world.changes.delete(world.bob, draft.id)
    world.changes.delete(world.ada, draft.id)
    with pytest.raises(NotFoundError):
        world.changes.get(world.ada, draft.id)
    submitted = world.test("good-2")
    with pytest.raises(ConflictError, match="delete requires draft"):
        world.changes.delete(world.ada, submitted.id)
    # Its number is not used again.
    assert world.changes.draft(world.ada, world.draft_of("good-3")).id > submitted.id
