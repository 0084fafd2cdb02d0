"""Servers that are found while the platform runs, by group. A group that cannot be read keeps its servers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from scorer.config.fields import NAME, host_port
from scorer.errors import ScorerError
from scorer.release.discovery_settings import MOST, DiscoverySettings

if TYPE_CHECKING:
    from scorer.events import EventLog

_NAME = re.compile(NAME)
_STOP_SECONDS = 0.5
_LONGEST_PAUSE = 30.0


@dataclass(frozen=True, slots=True, order=True)
class FoundServer:
    """A server of a group.

    Attributes:
        name: Name of the server on the platform.
        control: Address of its control service, as `host:port`.
        role: `live` or `shadow`.
        source: What it was found by, for people.
    """

    name: str
    control: str
    role: str
    source: str


def found_server(settings: DiscoverySettings, address: str, port: int, *, pod: str = "") -> FoundServer:
    """Return a server of a group.

    Args:
        settings: The group.
        address: IP address of the server.
        port: Port of its control service.
        pod: Name of its pod, which becomes its name if it can be one; empty: it has only an address.
    """
    by_address = f"{settings.name}-{address.lower().replace(':', '-').replace('%', '-')}"
    name = pod if _NAME.fullmatch(pod) else by_address
    return FoundServer(name, host_port(address, port), settings.role, settings.source)


Publish = Callable[[Sequence[FoundServer]], None]
"""Replaces the servers of a group."""


class Finder(Protocol):
    """Finds the servers of one group."""

    def run(self, publish: Publish, stopping: threading.Event) -> None:
        """Publish the servers, and again when they change, until an error or `stopping`.

        Raises:
            ScorerError: The servers cannot be found now. The call may be repeated.
        """


class Discovery:
    """Runs one thread for each group, so that a name server that is slow delays no other group.

    Args:
        groups: A finder for each group.
        events: The platform's event log; None: no events are written.
    """

    def __init__(
        self, groups: Mapping[str, tuple[DiscoverySettings, Finder]], events: EventLog | None = None
    ) -> None:
        self._groups, self._events = dict(groups), events
        self._found: dict[str, tuple[FoundServer, ...]] = {}
        self._errors: dict[str, str] = {}
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start a thread for each group."""
        for name in self._groups:
            thread = threading.Thread(
                target=self._run, args=(name,), name=f"platform-discovery-{name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop the threads. One that waits for a name server ends with the process."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(_STOP_SECONDS)
        self._threads.clear()

    def servers(self) -> Sequence[FoundServer]:
        """Return the servers that were found last, by group in the order of the settings."""
        return [one for name in self._groups for one in self._found.get(name, ())]

    def errors(self) -> Mapping[str, str]:
        """Return, for each group that cannot be read now, the reason in one line."""
        return dict(self._errors)

    def _run(self, name: str) -> None:
        settings, finder = self._groups[name]
        failures = 0

        def publish(servers: Sequence[FoundServer]) -> None:
            nonlocal failures
            failures = 0
            self._publish(name, servers)

        while not self._stopping.is_set():
            try:
                finder.run(publish, self._stopping)
            except ScorerError as error:
                failures += 1
                self._failed(name, f"{settings.source} cannot be read: {error}; its servers are kept")
            except Exception as error:
                failures += 1
                self._failed(name, f"{settings.source} cannot be read ({type(error).__name__})")
                if self._events is not None:
                    self._events.defect("discovery_failed", error, group=name)
            self._stopping.wait(min(2.0 ** min(failures, 5) / 2, _LONGEST_PAUSE))

    def _publish(self, name: str, servers: Sequence[FoundServer]) -> None:
        found = tuple(sorted(set(servers)))
        if len(found) > MOST:
            # Every server is called, so a wrong name must not make the platform call any number of them.
            self._failed(
                name, f"{len(found)} servers were found, more than {MOST}; the first {MOST} are used"
            )
            found = found[:MOST]
        elif self._errors.pop(name, None) and self._events is not None:
            self._events.info("discovery_recovered", group=name)
        if found != self._found.get(name) and self._events is not None:
            self._events.info("discovered", group=name, servers=len(found))
        self._found[name] = found

    def _failed(self, name: str, error: str) -> None:
        if self._errors.get(name) != error and self._events is not None:
            self._events.warning("discovery_failed", group=name, error=error)
        self._errors[name] = error
