"""Statuses of all servers, read concurrently."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeVar

from scorer.release.fleet.members import Member, MemberStatus

if TYPE_CHECKING:
    from scorer.release.fleet.calls import Fleet

_T = TypeVar("_T")
_OUTSTANDING = 3
"""Limit on concurrent calls to one server: one of a pass and two of rollbacks."""


class Spread(Protocol):
    """Runs a function for several servers."""

    def __call__(
        self, work: Callable[[Member], _T], members: Sequence[Member], *, seconds: float | None = None
    ) -> dict[str, _T]:
        """Return the results by server, without the servers that take longer than `seconds`."""


class Parallel:
    """Runs a function for several servers concurrently, so that a slow server does not delay the others.

    At most `most` calls that are younger than `patience` run at the same time. A call that takes longer
    continues in its thread and no longer counts. Its server is *late* until one of its calls ends within
    `patience`. Results of late servers are not waited for, and at most `most` calls to late servers are
    unfinished: the others have their turn in a later pass. A server with three unfinished calls is skipped
    until one of them ends.

    Args:
        most: Limit on concurrent calls.
        patience: Seconds after which a call is late.
    """

    def __init__(self, *, most: int = 32, patience: float = 1.0) -> None:
        self._most, self._patience = most, patience
        self._lock = threading.Lock()
        self._outstanding: dict[str, int] = {}
        self._called: dict[str, float] = {}
        self._late: set[str] = set()

    def __call__(
        self, work: Callable[[Member], _T], members: Sequence[Member], *, seconds: float | None = None
    ) -> dict[str, _T]:
        """Return the results by server, without late servers and those that take longer than `seconds`."""
        begun = time.monotonic()
        ended = threading.Condition()
        waiting, late = self._sorted(members)
        awaited: dict[str, float] = {}
        results: dict[str, Future[_T]] = {}

        def run(member: Member, future: Future[_T], started: float) -> None:
            try:
                result = work(member)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            finally:
                self._release(member.name, time.monotonic() - started)
                with ended:
                    awaited.pop(member.name, None)
                    ended.notify()

        def start(member: Member) -> None:
            future: Future[_T] = Future()
            results[member.name] = future
            thread = threading.Thread(
                target=run, args=(member, future, time.monotonic()), name=f"fleet-{member.name}", daemon=True
            )
            thread.start()

        with ended:
            while True:
                now = time.monotonic()
                young = [at for at in awaited.values() if now - at < self._patience]
                while waiting and len(young) < self._most:
                    member = waiting.popleft()
                    if self._take(member.name):
                        awaited[member.name] = now
                        young.append(now)
                        start(member)
                while late and not waiting:
                    member = late.popleft()
                    if self._take(member.name, is_late=True):
                        start(member)
                left = None if seconds is None else begun + seconds - now
                if not (waiting or awaited) or (left is not None and left <= 0):
                    break
                # A call that becomes late makes place for another one.
                place = min(young) + self._patience - now if waiting else None
                ended.wait(min((one for one in (left, place) if one is not None), default=None))
            with self._lock:
                self._late |= {name for name, at in awaited.items() if now - at >= self._patience}
            return {name: one.result() for name, one in results.items() if one.done()}

    def _sorted(self, members: Sequence[Member]) -> tuple[deque[Member], deque[Member]]:
        """Return the servers that respond in time, and the late ones, those not called for longest first."""
        with self._lock:
            late = [member for member in members if member.name in self._late]
            late.sort(key=lambda member: self._called.get(member.name, 0.0))
            return deque(member for member in members if member.name not in self._late), deque(late)

    def _take(self, name: str, *, is_late: bool = False) -> bool:
        with self._lock:
            count = self._outstanding.get(name, 0)
            if count >= _OUTSTANDING:
                return False
            if is_late and sum(self._outstanding.get(one, 0) for one in self._late) >= self._most:
                return False
            self._outstanding[name] = count + 1
            self._called[name] = time.monotonic()
            return True

    def _release(self, name: str, seconds: float) -> None:
        with self._lock:
            self._outstanding[name] -= 1
            if not self._outstanding[name]:
                del self._outstanding[name]
            if seconds < self._patience:
                self._late.discard(name)
                self._called.pop(name, None)
            else:
                self._late.add(name)


class Statuses:
    """The latest status of every server, for the pipeline, the metrics and the pages.

    Args:
        fleet: The servers.
        spread: Calls all servers concurrently.
        max_age: Seconds for which `recent` returns the statuses that `look` or a pass of the reconciler read.
    """

    def __init__(self, fleet: Fleet, *, spread: Spread | None = None, max_age: float = 0.0) -> None:
        self._fleet = fleet
        self._spread = spread or Parallel()
        self._max_age = max_age
        self._at = float("-inf")
        self._found: dict[str, MemberStatus] = {}
        self._lock = threading.Lock()
        self._keeping = threading.Lock()

    def look(self) -> Mapping[str, MemberStatus]:
        """Read and return all statuses by server. A server that does not respond in time is unreachable."""
        members = self._fleet.members
        begun = time.monotonic()
        reads = self._spread(self.read, members, seconds=self._fleet.status_seconds + 1)
        waited = time.monotonic() - begun
        for member in members:
            if member.name not in reads and waited > self._fleet.status_seconds:
                self.put(member, not_in_time(member))
        self.touch()
        return self.known()

    def recent(self) -> Mapping[str, MemberStatus]:
        """Return all statuses by server, read again if they are older than `max_age`."""
        with self._lock:
            if time.monotonic() - self._at > self._max_age:
                return self.look()
        return self.known()

    def known(self) -> Mapping[str, MemberStatus]:
        """Return the latest statuses of the present servers, without a call."""
        found = self.asked()
        return MappingProxyType(
            {
                member.name: found.get(member.name) or MemberStatus(reachable=False, error=_not_asked(member))
                for member in self._fleet.members
            }
        )

    def asked(self) -> Mapping[str, MemberStatus]:
        """Return the latest statuses of the servers that were called at least once."""
        with self._keeping:
            return dict(self._found)

    def read(self, member: Member) -> MemberStatus:
        """Read and keep the status of a server."""
        status = self._fleet.status(member)
        self.put(member, status)
        return status

    def put(self, member: Member, status: MemberStatus) -> None:
        """Keep a status that a pass of the reconciler has read."""
        with self._keeping:
            self._found[member.name] = status

    def touch(self) -> None:
        """State that the statuses are recent: a pass has read those that were due."""
        names = {member.name for member in self._fleet.members}
        with self._keeping:
            self._at = time.monotonic()
            self._found = {name: status for name, status in self._found.items() if name in names}


def not_in_time(member: Member) -> MemberStatus:
    """Return the status of a server that has not responded in time."""
    return MemberStatus(reachable=False, error=f'server "{member.name}" has not responded in time')


def _not_asked(member: Member) -> str:
    return f'server "{member.name}" has not been asked yet'
