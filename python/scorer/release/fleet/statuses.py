"""What every server reports, asked of all of them at once."""

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
"""Calls under way to one server, at most: one of a round and two of rollbacks."""


class Spread(Protocol):
    """Does the same for several servers."""

    def __call__(
        self, work: Callable[[Member], _T], members: Sequence[Member], *, seconds: float | None = None
    ) -> dict[str, _T]:
        """Return the results by server; a server that takes longer than `seconds` is left out."""


class Parallel:
    """Does the same for all servers at once, and waits for none of them longer than a limit.

    Work that takes longer goes on in its thread, and its result is dropped. A server that has three calls
    under way gets no further one until one of them ends, so the number of threads is bounded.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outstanding: dict[str, int] = {}

    def __call__(
        self, work: Callable[[Member], _T], members: Sequence[Member], *, seconds: float | None = None
    ) -> dict[str, _T]:
        """Return the results by server; a server that takes longer than `seconds` is left out."""
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
    """The latest status of every server; one pass serves the pipeline, the counters and the pages.

    Args:
        fleet: The servers.
        spread: Asks all of them.
        max_age: Seconds for which a pass is used again by `recent`.
    """

    def __init__(self, fleet: Fleet, *, spread: Spread | None = None, max_age: float = 0.0) -> None:
        self._fleet = fleet
        self._spread = spread or Parallel()
        self._max_age = max_age
        self._at = float("-inf")
        self._found: Mapping[str, MemberStatus] = {}
        self._lock = threading.Lock()

    def look(self) -> Mapping[str, MemberStatus]:
        """Ask every server now; by its name. A server that does not answer in time is not reachable."""
        found = self._spread(self._fleet.status, self._fleet.members, seconds=self._fleet.status_seconds + 1)
        statuses = {
            member.name: found.get(member.name)
            or MemberStatus(reachable=False, error=f'server "{member.name}" has not answered in time')
            for member in self._fleet.members
        }
        self._found, self._at = MappingProxyType(statuses), time.monotonic()
        return self._found

    def recent(self) -> Mapping[str, MemberStatus]:
        """The latest pass, made anew where it is older than `max_age`; by the server's name."""
        with self._lock:
            if time.monotonic() - self._at > self._max_age:
                return self.look()
            return self._found
