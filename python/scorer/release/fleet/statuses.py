"""Statuses of all servers, read concurrently."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
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
    """Runs a function for all servers concurrently, with a time limit.

    A call that exceeds the limit continues in its thread, and its result is dropped. A server with three
    unfinished calls is skipped until one of them ends, which limits the number of threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outstanding: dict[str, int] = {}

    def __call__(
        self, work: Callable[[Member], _T], members: Sequence[Member], *, seconds: float | None = None
    ) -> dict[str, _T]:
        """Return the results by server, without the servers that take longer than `seconds`."""
        futures: dict[str, Future[_T]] = {}
        for member in members:
            if self._take(member.name):
                future: Future[_T] = Future()
                futures[member.name] = future
                threading.Thread(
                    target=self._run, args=(work, member, future), name=f"fleet-{member.name}", daemon=True
                ).start()
        done, _ = wait(futures.values(), timeout=seconds)
        return {name: future.result() for name, future in futures.items() if future in done}

    def _take(self, name: str) -> bool:
        with self._lock:
            count = self._outstanding.get(name, 0)
            if count >= _OUTSTANDING:
                return False
            self._outstanding[name] = count + 1
            return True

    def _run(self, work: Callable[[Member], _T], member: Member, future: Future[_T]) -> None:
        try:
            result = work(member)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        finally:
            with self._lock:
                self._outstanding[member.name] -= 1


class Statuses:
    """Caches the latest status of every server for the pipeline, the metrics and the pages.

    Args:
        fleet: The servers.
        spread: Calls all servers concurrently.
        max_age: Seconds for which `recent` returns cached statuses.
    """

    def __init__(self, fleet: Fleet, *, spread: Spread | None = None, max_age: float = 0.0) -> None:
        self._fleet = fleet
        self._spread = spread or Parallel()
        self._max_age = max_age
        self._at = float("-inf")
        self._found: Mapping[str, MemberStatus] = {}
        self._lock = threading.Lock()

    def look(self) -> Mapping[str, MemberStatus]:
        """Read and return all statuses by server. A server that does not respond in time is unreachable."""
        reads = self._spread(self._fleet.status, self._fleet.members, seconds=self._fleet.status_seconds + 1)
        statuses = {
            member.name: reads.get(member.name)
            or MemberStatus(reachable=False, error=f'server "{member.name}" has not responded in time')
            for member in self._fleet.members
        }
        self._found, self._at = MappingProxyType(statuses), time.monotonic()
        return self._found

    def recent(self) -> Mapping[str, MemberStatus]:
        """Return all statuses by server, read again if they are older than `max_age`."""
        with self._lock:
            if time.monotonic() - self._at > self._max_age:
                return self.look()
            return self._found
