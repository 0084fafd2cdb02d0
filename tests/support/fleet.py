"""A fleet without servers. Its members keep the contract of a controller, and fail as servers do.

::

    fleet = FakeFleet([Member("live-1", "", "live"), Member("pool", "", "shadow")],
                      checkpoints={"fraud.checkout": "score"}, answer={"fraud.checkout": digest})
    fleet.disconnect("live-1")                 # calls raise UnreachableError
    fleet.restart("live-1")                    # reachable again, with its last known table
    fleet.refuse[digest] = "golden case 17"    # no member loads this bundle
    fleet.lose_responses("live-1", 1)          # the next call takes effect, and its response is lost
    fleet.change_outside("live-1", "fraud.checkout", answer=[...])
    fleet.before_call = hook                   # hook(member, method, checkpoint): raise to kill the caller
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from scorer.control.lanes import Lane, check_apart, check_lanes, check_observers
from scorer.errors import ScorerError
from scorer.release.errors import NotFoundError, RefusedError, UnreachableError
from scorer.release.fleet import BrokenGlass, CheckpointStatus, Fleet, Member, MemberStatus, StaleError
from scorer.release.model import LaneSpec


@dataclass(frozen=True, slots=True)
class Call:
    """A call that reached a member."""

    member: str
    method: str
    checkpoint: str
    lanes: tuple[LaneSpec, ...]
    reason: str


@dataclass
class FakeMember:
    """State of one member. A restart keeps all of it, as a server keeps it on disk."""

    role: str
    checkpoints: dict[str, CheckpointStatus]
    version: int = 1
    up: bool = True
    started: int = 1
    responses_to_lose: int = 0
    counters: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """Fields of `ObserverStatus` that are not zero, by checkpoint and lane."""
    nodes: dict[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """The nodes that the status reports, by the digest of a bundle."""
    tables: list[Mapping[str, CheckpointStatus]] = field(default_factory=list)
    """Every lane table that was active, oldest first."""

    def put(self, checkpoint: str, status: CheckpointStatus) -> None:
        if self.checkpoints.get(checkpoint) != status:
            self.checkpoints = {**self.checkpoints, checkpoint: status}
            self.version += 1
            self.tables.append(self.checkpoints)


class FakeFleet(Fleet):
    """Implements `Fleet` in memory.

    Args:
        members: The members. Their addresses are not used.
        checkpoints: Kind of each checkpoint, by name. Every member has all of them.
        answer: Digest of the first answer lane of live members, by checkpoint. It follows `name@live`.
    """

    def __init__(
        self,
        members: Sequence[Member],
        *,
        checkpoints: Mapping[str, str],
        answer: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(members, status_seconds=2.0)
        self.refuse: dict[str, str] = {}
        """The bundles that no member loads: digest to reason."""
        self.known: set[str] | None = None
        """The bundles in the registry of the members; None: all."""
        self.calls: list[Call] = []
        """The calls that reached a member, including refused ones."""
        self.before_call: Callable[[str, str, str], None] | None = None
        self.after_call: Callable[[str, str, str], None] | None = None
        first = {name: (LaneSpec("live", digest, share=1.0),) for name, digest in (answer or {}).items()}
        self._first = first
        self._kinds = dict(checkpoints)
        self._held: dict[str, FakeMember] = {}
        for member in members:
            self.join(member.name, member.role)

    # --- operations of the tests ---

    def join(self, name: str, role: str = "live") -> None:
        """Start a new server, which follows its aliases."""
        checkpoints = {
            checkpoint: CheckpointStatus(
                kind,
                f"{checkpoint.replace('.', '-')}@live" if role == "live" else "",
                self._first.get(checkpoint, ()) if role == "live" else (),
                (),
            )
            for checkpoint, kind in self._kinds.items()
        }
        self._held[name] = FakeMember(role, checkpoints, tables=[checkpoints])

    def held(self, name: str) -> FakeMember:
        """Return the state of a member."""
        return self._held[name]

    def disconnect(self, name: str) -> None:
        """Make a member unreachable until `reconnect`, as after a kill or a network partition."""
        self._held[name].up = False

    def reconnect(self, name: str) -> None:
        """Make a member reachable again. Its state is unchanged."""
        self._held[name].up = True

    def restart(self, name: str) -> None:
        """Restart a member with its last known table, without observe lanes that no longer load."""
        held = self._held[name]
        for checkpoint, status in held.checkpoints.items():
            kept = tuple(lane for lane in status.observe if lane.bundle not in self.refuse)
            held.put(checkpoint, replace(status, observe=kept))
        held.counters.clear()
        held.started += 1
        held.up = True

    def lose_responses(self, name: str, count: int) -> None:
        """Execute the next `count` calls, but lose their responses."""
        self._held[name].responses_to_lose = count

    def change_outside(
        self,
        name: str,
        checkpoint: str,
        *,
        answer: Sequence[LaneSpec] | None = None,
        observe: Sequence[LaneSpec] | None = None,
        following: str = "",
    ) -> None:
        """Change lanes of a member from outside the platform, as a command or a moved alias does."""
        status = self._held[name].checkpoints[checkpoint]
        if answer is not None:
            status = replace(status, answer=tuple(answer), following=following)
        if observe is not None:
            status = replace(status, observe=tuple(observe))
        self._held[name].put(checkpoint, status)

    def break_glass(
        self, name: str, checkpoint: str, answer: Sequence[LaneSpec], *, by: str, reason: str, at: datetime
    ) -> None:
        """Change a managed checkpoint as a command with --break-glass does."""
        held = self._held[name]
        glass = BrokenGlass(at, by, reason, held.version + 1)
        held.put(checkpoint, replace(held.checkpoints[checkpoint], answer=tuple(answer), break_glass=glass))

    def drift(self, name: str, checkpoint: str, digest: str) -> None:
        """Report that the alias was moved to this digest, which the member does not serve."""
        held = self._held[name]
        held.checkpoints = {
            **held.checkpoints,
            checkpoint: replace(held.checkpoints[checkpoint], drift=digest),
        }

    def count(self, name: str, checkpoint: str, lane: str, **counters: Any) -> None:
        """Set counters of an observe lane that the member's status reports from now on."""
        self._held[name].counters.setdefault((checkpoint, lane), {}).update(counters)

    def time_nodes(self, name: str, digest: str, nodes: Sequence[Mapping[str, Any]]) -> None:
        """Set the nodes of a bundle that the member's status reports, as `NodeStatus` of control.proto."""
        self._held[name].nodes[digest] = nodes

    # --- interface of `Fleet` ---

    def status(self, member: Member) -> MemberStatus:
        held = self._held[member.name]
        try:
            self._arrive(member, "status", "")
        except UnreachableError as error:
            return MemberStatus(reachable=False, error=str(error))
        observers = [
            {
                **_ZERO,
                "checkpoint": checkpoint,
                "lane": lane.name,
                "bundle": lane.bundle,
                "pool": lane.pool,
                **held.counters.get((checkpoint, lane.name), {}),
            }
            for checkpoint, status in held.checkpoints.items()
            for lane in status.observe
        ]
        return MemberStatus(
            reachable=True,
            state="SERVING",
            lane_table=held.version,
            checkpoints=held.checkpoints,
            observers=observers,
            bundles=[{"digest": digest, "nodes": nodes} for digest, nodes in held.nodes.items()],
            raw={
                "started_at_ms": held.started,
                "lane_table": held.version,
                "observers": observers,
                "role": held.role,
            },
            role=held.role,
        )

    def add_checkpoint(
        self, member: Member, checkpoint: str, settings: Mapping[str, Any], *, by: str, reason: str
    ) -> None:
        held = self._held[member.name]
        if not held.up:
            raise UnreachableError(f'server "{member.name}" does not respond')
        if checkpoint in self.refuse:
            raise RefusedError(f'server "{member.name}" refuses: {self.refuse[checkpoint]}')
        alias = settings["alias"] if held.role == "live" else ""
        held.put(checkpoint, CheckpointStatus(settings["kind"], alias, (), ()))

    def set_answer(
        self,
        member: Member,
        checkpoint: str,
        lanes: Sequence[LaneSpec],
        *,
        reason: str,
        expected: int | None = None,
    ) -> int:
        held = self._held[member.name]
        status = self._accept(member, "set_answer", checkpoint, lanes, reason, expected)
        if held.role == "shadow":
            raise RefusedError(f'server "{member.name}" refuses: it is of the shadow pool and answers nobody')
        wanted = [Lane(lane.name, lane.bundle, lane.share) for lane in lanes]
        self._check(member, lambda: check_lanes(checkpoint, wanted))
        self._check(member, lambda: check_apart(checkpoint, wanted, _lanes(status.observe)))
        answer = tuple(LaneSpec(lane.name, lane.bundle, share=lane.share) for lane in lanes)
        if answer != status.answer:
            self._load(member, lanes)
            status = replace(status, answer=answer, following="")
        return self._finish(member, "set_answer", checkpoint, status)

    def set_observers(
        self,
        member: Member,
        checkpoint: str,
        lanes: Sequence[LaneSpec],
        *,
        reason: str,
        expected: int | None = None,
    ) -> int:
        held = self._held[member.name]
        status = self._accept(member, "set_observers", checkpoint, lanes, reason, expected)
        wanted = _lanes(lanes)
        self._check(member, lambda: check_observers(checkpoint, wanted))
        self._check(member, lambda: check_apart(checkpoint, _lanes(status.answer), wanted))
        self._load(member, [lane for lane in lanes if not lane.pool or held.role == "shadow"])
        observe = tuple(
            LaneSpec(
                lane.name, lane.bundle, "observe", sample=lane.sample, filter=lane.filter, pool=lane.pool
            )
            for lane in lanes
        )
        return self._finish(member, "set_observers", checkpoint, replace(status, observe=observe))

    def manage(self, member: Member, checkpoint: str) -> None:
        self._arrive(member, "manage", checkpoint)
        held = self._held[member.name]
        status = held.checkpoints[checkpoint]
        if status.managed_by not in ("", self.platform):
            raise RefusedError(f'server "{member.name}" refuses: it is managed by "{status.managed_by}"')
        # The management mark is stored beside the lane table, which does not change.
        held.checkpoints = {
            **held.checkpoints,
            checkpoint: replace(status, managed_by=self.platform, following=""),
        }
        held.tables[-1] = held.checkpoints

    def close(self) -> None:
        pass

    def _arrive(self, member: Member, method: str, checkpoint: str) -> None:
        if self.before_call is not None:
            self.before_call(member.name, method, checkpoint)
        if not self._held[member.name].up:
            raise UnreachableError(
                f'server "{member.name}" does not respond; check that `scorer serve` runs there'
            )

    def _accept(
        self,
        member: Member,
        method: str,
        checkpoint: str,
        lanes: Sequence[LaneSpec],
        reason: str,
        expected: int | None,
    ) -> CheckpointStatus:
        self._arrive(member, method, checkpoint)
        self.calls.append(Call(member.name, method, checkpoint, tuple(lanes), reason))
        result = self._held[member.name].checkpoints.get(checkpoint)
        if result is None:
            raise NotFoundError(f'server "{member.name}": no checkpoint "{checkpoint}"')
        version = self._held[member.name].version
        if expected not in (None, version):
            raise StaleError(f'server "{member.name}": the lane table is {version} now, not {expected}')
        return result

    def _check(self, member: Member, check: Callable[[], None]) -> None:
        try:
            check()
        except ScorerError as error:
            raise RefusedError(f'server "{member.name}" refuses: {error}') from None

    def _load(self, member: Member, lanes: Sequence[LaneSpec]) -> None:
        for lane in lanes:
            if self.known is not None and lane.bundle not in self.known:
                raise NotFoundError(f'server "{member.name}": no bundle {lane.bundle} in the registry')
            if lane.bundle in self.refuse:
                raise RefusedError(f'server "{member.name}" refuses: {self.refuse[lane.bundle]}')

    def _finish(self, member: Member, method: str, checkpoint: str, status: CheckpointStatus) -> int:
        held = self._held[member.name]
        held.put(checkpoint, status)
        if self.after_call is not None:
            self.after_call(member.name, method, checkpoint)
        if held.responses_to_lose:
            held.responses_to_lose -= 1
            raise UnreachableError(f'server "{member.name}" has not responded within 60 s')
        return held.version


def _lanes(specs: Sequence[LaneSpec]) -> list[Lane]:
    return [
        Lane(s.name, s.bundle, s.share, s.sample, s.filter, s.pool)
        if s.mode == "observe"
        else Lane(s.name, s.bundle, s.share)
        for s in specs
    ]


_ZERO: Mapping[str, Any] = {
    "seen": 0,
    "left_out": 0,
    "taken": 0,
    "dropped": 0,
    "shed": 0,
    "evaluated": 0,
    "failed": {},
    "unlogged": 0,
    "waiting": 0,
    "stuck": False,
    "exec_p50_us": 0.0,
    "exec_p99_us": 0.0,
    "exec_p999_us": 0.0,
    "cpu_seconds": 0.0,
}


def one_by_one(
    work: Callable[[Member], Any], members: Sequence[Member], *, seconds: float | None = None
) -> dict[str, Any]:
    """Replaces `Parallel` in tests that count statements."""
    return {member.name: work(member) for member in members}
