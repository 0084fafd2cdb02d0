"""Tests of the fleet over gRPC with real controllers, and of its fake with the same expectations."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from control_server import Served
from control_world import ACTION, FRAUD
from fakes import FakeDataPlane
from fleet import FakeFleet
from waiting import wait_until

from scorer.release.errors import NotFoundError, PlatformError, RefusedError, UnreachableError
from scorer.release.fleet import Fleet, Member
from scorer.release.model import LaneSpec

FILTER = '[{"feature":  "amount", "op": ">=", "value": 100}]'


class Real:
    """Implements the operations of the common tests on a real control service."""

    def __init__(self, base: Path) -> None:
        self.served = Served(base)
        self.member = Member("live-1", self.served.address)
        self.fleet: Fleet = Fleet([self.member])
        self.first = self.served.first

    def bundle(self, content: str) -> str:
        return self.served.world.push(content)

    def refuse(self, digest: str, why: str) -> None:
        self.served.world.plane.refuse[digest] = why

    def disconnect(self) -> None:
        self.served.stop()

    def restart(self) -> None:
        refused = self.served.world.plane.refuse

        def new_plane() -> FakeDataPlane:
            plane = FakeDataPlane()
            plane.refuse.update(refused)
            return plane

        self.served.world.make_plane = new_plane
        self.served.start()

    def close(self) -> None:
        self.fleet.close()
        self.served.close()


class Fake:
    """Implements the operations of the common tests on `FakeFleet`."""

    def __init__(self, base: Path) -> None:
        self.first = "sha256:" + "a" * 64
        self.member = Member("live-1", "")
        self.fake = FakeFleet([self.member], checkpoints={FRAUD: "score", ACTION: "action"}, answer={
            FRAUD: self.first, ACTION: "sha256:" + "b" * 64
        })  # fmt: skip
        self.fake.known = {self.first}
        self.fleet: Fleet = self.fake

    def bundle(self, content: str) -> str:
        digest = "sha256:" + content.encode().hex().ljust(64, "0")
        assert self.fake.known is not None
        self.fake.known.add(digest)
        return digest

    def refuse(self, digest: str, why: str) -> None:
        self.fake.refuse[digest] = why

    def disconnect(self) -> None:
        self.fake.disconnect("live-1")

    def restart(self) -> None:
        self.fake.restart("live-1")

    def close(self) -> None:
        pass


@pytest.fixture(params=[Real, Fake])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Real | Fake]:
    result = request.param(tmp_path)
    try:
        yield result
    finally:
        result.close()


def live(digest: str, share: float = 1.0, name: str = "live") -> LaneSpec:
    return LaneSpec(name, digest, share=share)


def shadow(name: str, digest: str, sample: float = 0.25, *, pool: bool = False) -> LaneSpec:
    return LaneSpec(name, digest, "observe", sample=sample, filter=FILTER, pool=pool)


def test_the_status_reports_the_lanes_that_were_set(either: Real | Fake) -> None:
    fleet, member = either.fleet, either.member
    status = fleet.status(member)
    assert (status.reachable, status.error, status.state, status.role) == (True, "", "SERVING", "live")
    assert status.checkpoints is not None
    assert set(status.checkpoints) == {FRAUD, ACTION}
    at = status.checkpoints[FRAUD]
    assert (at.kind, at.following, at.answer, at.observe) == (
        "score",
        status.checkpoints[FRAUD].following,
        (live(either.first),),
        (),
    )
    assert at.following.endswith("@live")
    b, c = either.bundle("b"), either.bundle("c")
    observe = [shadow("cr-000001", b), shadow("cr-000002", c, pool=True)]
    fleet.set_observers(member, FRAUD, observe, reason="cr-000001 table 1")
    answer = [live(either.first, 0.9), live(b, 0.1, "canary")]
    fleet.set_answer(member, FRAUD, answer, reason="cr-000003 table 2")
    after = fleet.status(member)
    assert after.checkpoints is not None
    at = after.checkpoints[FRAUD]
    assert (at.answer, at.observe, at.following) == (tuple(answer), tuple(observe), "")
    assert after.checkpoints[ACTION] == status.checkpoints[ACTION]
    assert after.lane_table > status.lane_table
    fleet.set_answer(member, FRAUD, answer, reason="again")
    fleet.set_observers(member, FRAUD, observe, reason="again")
    assert fleet.status(member).lane_table == after.lane_table, "a repeated call changes nothing"
    fleet.set_observers(member, FRAUD, [], reason="over")
    at = (fleet.status(member).checkpoints or {})[FRAUD]
    assert (at.answer, at.observe) == (tuple(answer), ())


def test_an_unreachable_member_is_reported_and_keeps_its_state(either: Real | Fake) -> None:
    fleet, member = either.fleet, either.member
    b, bad = either.bundle("b"), either.bundle("bad")
    fleet.set_answer(member, FRAUD, [live(b)], reason="")
    fleet.set_observers(member, FRAUD, [shadow("good", either.first), shadow("bad", bad)], reason="")
    either.disconnect()
    status = fleet.status(member)
    assert not status.reachable
    assert 'server "live-1"' in status.error and "scorer serve" in status.error
    for call in (fleet.set_answer, fleet.set_observers):
        with pytest.raises(UnreachableError, match="does not respond"):
            call(member, FRAUD, [], reason="")
    either.refuse(bad, "golden case 17 differs")
    either.restart()
    # A channel reconnects within a second.
    back = wait_until(
        lambda: status if (status := fleet.status(member)).reachable else None, "the server to be reachable"
    )
    assert back is not None
    at = (back.checkpoints or {})[FRAUD]
    assert at.answer == (live(b),)
    assert at.observe == (shadow("good", either.first),)


REFUSED: list[tuple[str, str, str, Callable[[str], list[LaneSpec]], type[PlatformError]]] = [
    ("unknown checkpoint", "set_answer", "fraud.chekout", lambda b: [live(b)], NotFoundError),
    ("unknown checkpoint", "set_observers", "fraud.chekout", lambda b: [shadow("a", b)], NotFoundError),
    ("unknown bundle", "set_answer", FRAUD, lambda _: [live("sha256:" + "9" * 64)], NotFoundError),
    ("unknown bundle", "set_observers", FRAUD, lambda _: [shadow("a", "sha256:" + "9" * 64)], NotFoundError),
    ("does not load", "set_answer", FRAUD, lambda b: [live(b)], RefusedError),
    ("does not load", "set_observers", FRAUD, lambda b: [shadow("a", b)], RefusedError),
    ("shares", "set_answer", FRAUD, lambda b: [live(b, 0.5)], RefusedError),
    ("sample", "set_observers", FRAUD, lambda b: [shadow("a", b, 0.0)], RefusedError),
    ("filter", "set_observers", FRAUD, lambda b: [LaneSpec("a", b, "observe", filter="{")], RefusedError),
    ("names", "set_observers", FRAUD, lambda b: [shadow("live", b)], RefusedError),
]


@pytest.mark.parametrize(
    ("method", "checkpoint", "lanes", "error"),
    [c[1:] for c in REFUSED],
    ids=[f"{c[1]} {c[0]}" for c in REFUSED],
)
def test_refusals_are_reported(
    either: Real | Fake,
    method: str,
    checkpoint: str,
    lanes: Callable[[str], list[LaneSpec]],
    error: type[PlatformError],
) -> None:
    bad = either.bundle("bad")
    either.refuse(bad, "golden case 17 differs")
    before = either.fleet.status(either.member)
    with pytest.raises(error) as caught:
        getattr(either.fleet, method)(either.member, checkpoint, lanes(bad), reason="")
    assert 'server "live-1"' in str(caught.value) and "\n" not in str(caught.value)
    after = either.fleet.status(either.member)
    assert (after.checkpoints, after.lane_table) == (before.checkpoints, before.lane_table)


# --- tests of the real fleet only ---


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Real]:
    real = Real(tmp_path)
    try:
        yield real
    finally:
        real.close()


def test_a_status_contains_all_fields_and_numbers_as_numbers(real: Real) -> None:
    real.served.world.plane.extra_status = {
        "observers": [{"checkpoint": FRAUD, "lane": "a", "seen": 2**60, "failed": {"panic": 2}}],
        "pool": {"address": "127.0.0.1:9", "sent": 3},
    }
    status = real.fleet.status(real.member)
    (observer,) = status.observers
    assert observer["seen"] == 2**60
    assert observer["failed"] == {"panic": 2}
    assert (observer["stuck"], observer["cpu_seconds"], observer["taken"]) == (False, 0.0, 0)
    assert status.pool is not None
    assert (status.pool["sent"], status.pool["connected"]) == (3, False)
    assert status.raw is not None
    assert status.raw["version"] == "1.2.3"
    assert {one["digest"] for one in status.bundles} == set(real.served.world.plane.loaded)
    real.served.world.plane.extra_status = {}
    status = real.fleet.status(real.member)
    assert (tuple(status.observers), status.pool) == ((), None)


def test_a_bundle_that_passed_its_gates_is_not_refused_for_its_warm_up(real: Real) -> None:
    b = real.bundle("b")
    real.fleet.set_answer(real.member, FRAUD, [live(b)], reason="")
    wanted = real.served.world.plane.wanted[b]
    assert wanted is not None
    assert wanted.allow_slower


def test_a_call_to_a_hanging_member_ends_at_the_deadline(real: Real) -> None:
    plane = real.served.world.plane
    b = real.bundle("b")
    plane.may_load.clear()
    with closing(Fleet([real.member], change_seconds=0.3)) as fleet:
        with pytest.raises(UnreachableError, match=r"within 0\.3 s"):
            fleet.set_answer(real.member, FRAUD, [live(b)], reason="")
        assert fleet.status(real.member).reachable
    plane.may_load.set()
    # A call that timed out may have taken effect. Repeating it is safe.
    real.fleet.set_answer(real.member, FRAUD, [live(b)], reason="")
    assert (real.fleet.status(real.member).checkpoints or {})[FRAUD].answer == (live(b),)


def test_an_internal_error_of_the_server_is_not_a_refusal(real: Real) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret internals")

    real.served.world.plane.load = broken  # type: ignore[assignment,method-assign]
    with pytest.raises(PlatformError, match="INTERNAL") as caught:
        real.fleet.set_answer(real.member, FRAUD, [live(real.bundle("b"))], reason="")
    assert not isinstance(caught.value, RefusedError | UnreachableError)
    assert "secret" not in str(caught.value)


def test_another_program_at_the_address_is_reported_as_such() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as deaf:
        member = Member("deaf", f"127.0.0.1:{deaf.getsockname()[1]}")
        with closing(Fleet([member], status_seconds=0.3)) as fleet:
            status = fleet.status(member)
            assert not status.reachable
            assert 'server "deaf"' in status.error
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        member = Member("other", f"127.0.0.1:{port}")
        with closing(Fleet([member])) as fleet, pytest.raises(RefusedError, match="version is older"):
            fleet.set_observers(member, FRAUD, [], reason="")
    finally:
        server.stop(None)


def test_a_closed_fleet_connects_again(real: Real) -> None:
    assert real.fleet.status(real.member).reachable
    real.fleet.close()
    assert real.fleet.status(real.member).reachable


# --- tests of the fake fleet only ---


def test_a_call_may_take_effect_although_its_response_is_lost() -> None:
    member = Member("live-1", "")
    fleet = FakeFleet([member], checkpoints={FRAUD: "score"}, answer={FRAUD: "sha256:" + "a" * 64})
    fleet.lose_responses("live-1", 1)
    lanes = [live("sha256:" + "b" * 64)]
    with pytest.raises(UnreachableError):
        fleet.set_answer(member, FRAUD, lanes, reason="cr-000001 table 2")
    assert fleet.held("live-1").checkpoints[FRAUD].answer == tuple(lanes)
    fleet.set_answer(member, FRAUD, lanes, reason="cr-000001 table 2")
    assert [call.reason for call in fleet.calls] == ["cr-000001 table 2"] * 2
    assert len(fleet.held("live-1").tables) == 2


def test_the_pool_accepts_no_answer_lanes() -> None:
    member = Member("pool", "", "shadow")
    fleet = FakeFleet([member], checkpoints={FRAUD: "score"}, answer={FRAUD: "sha256:" + "a" * 64})
    with pytest.raises(RefusedError, match="shadow pool"):
        fleet.set_answer(member, FRAUD, [live("sha256:" + "b" * 64)], reason="")
    fleet.set_observers(member, FRAUD, [shadow("cr-000001", "sha256:" + "b" * 64, pool=True)], reason="")
    fleet.count("pool", FRAUD, "cr-000001", taken=7)
    (observer,) = fleet.status(member).observers
    assert (observer["lane"], observer["taken"], observer["pool"]) == ("cr-000001", 7, True)
