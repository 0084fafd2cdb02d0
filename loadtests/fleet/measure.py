"""The platform and simulated servers, of which some are dead or slow, and what happens to recorded tables."""

from __future__ import annotations

import io
import json
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from loadtests.figures import ROOT
from loadtests.fleet.bundles import publish
from loadtests.fleet.servers import BUNDLE, CHECKPOINT
from scorer.events import EventLog
from scorer.release.lanes import recorded
from scorer.release.lanes.recorded import LaneDecision
from scorer.release.model import PLATFORM, LaneSpec
from scorer.release.open import PlatformServices, open_service
from scorer.release.settings import PlatformFile
from scorer.release.store import utcnow

PER_PROCESS: Final = 25
SLOW_SECONDS: Final = 20.0
PATIENCE: Final = 120.0
"""Seconds after which a step of the measurement fails."""
_ENDING: Final = 30.0
_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Fleet:
    """Simulated servers.

    Attributes:
        controls: Addresses of the control services by name.
        healthy: Names of the servers that respond at once.
        digests: The live bundle, and revisions of its overlay.
        swaps: Receives a line for each change of lanes of a server.
    """

    controls: dict[str, str]
    healthy: tuple[str, ...]
    digests: list[str]
    registry: Path
    swaps: queue.Queue[dict[str, Any]]


@dataclass
class Reached:
    """When the servers had a table.

    Attributes:
        cause: Cause of the table.
        seconds: Time from the record of the table to the change of lanes, by server.
    """

    cause: str
    seconds: dict[str, float] = field(default_factory=dict)


@contextmanager
def fleet(directory: Path, servers: int, sick: int, tables: int) -> Iterator[Fleet]:
    """Run simulated servers.

    A third of the sick ones refuse connections, a third accept them and never respond, and the others take
    20 s to load a bundle.

    Args:
        directory: An empty directory.
        servers: Number of servers.
        sick: Number of them that are dead or slow.
        tables: Number of revisions in the registry.
    """
    registry = directory / "registry"
    digests = publish(directory, registry, tables)
    names = [f"server-{number:03}" for number in range(servers)]
    healthy, ill = names[: servers - sick], names[servers - sick :]
    closed, deaf, slow = (ill[at::3] for at in range(3))
    swaps: queue.Queue[dict[str, Any]] = queue.Queue()
    with ExitStack() as stack:
        controls: dict[str, str] = {}
        for at in range(0, len(healthy), PER_PROCESS):
            portion = healthy[at : at + PER_PROCESS]
            controls |= stack.enter_context(_process(directory, registry, portion, swaps))
        if slow:
            # In a process of their own: their loads occupy its threads.
            controls |= stack.enter_context(
                _process(directory, registry, slow, swaps, "--slow", str(SLOW_SECONDS))
            )
        for name in (*deaf, *closed):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            controls[name] = f"127.0.0.1:{listener.getsockname()[1]}"
            if name in closed:
                listener.close()
        yield Fleet({name: controls[name] for name in names}, tuple(healthy), digests, registry, swaps)


@contextmanager
def _process(
    directory: Path, registry: Path, names: Sequence[str], swaps: queue.Queue[dict[str, Any]], *more: str
) -> Iterator[dict[str, str]]:
    arguments = [str(directory / "servers"), str(registry), *names, *more]
    process = subprocess.Popen(
        [sys.executable, "-m", "loadtests.fleet.servers", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    serving: queue.Queue[dict[str, str]] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for text in process.stdout:
            line = json.loads(text)
            if "serving" in line:
                serving.put(line["serving"])
            else:
                swaps.put(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield serving.get(timeout=PATIENCE)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_ENDING)
        reader.join(_ENDING)
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def platform(directory: Path, own: Fleet) -> Iterator[PlatformServices]:
    """Run the platform's threads in this process, with the settings that a fleet needs and no others."""
    text = f'[platform]\ndatabase = "platform.sqlite"\nregistry = "{own.registry}"\n'
    for name, control in own.controls.items():
        text += f'[[fleet]]\nname = "{name}"\ncontrol = "{control}"\n'
    text += f'[checkpoints."{CHECKPOINT}"]\nalias = "{BUNDLE}@live"\n'
    settings = PlatformFile.parse(text, base=directory)
    opened = open_service(settings, events=EventLog(io.BytesIO()))
    opened.start()
    try:
        yield opened
    finally:
        opened.close()


class Tables:
    """Records lane tables, and waits until the healthy servers have them.

    Args:
        own: The servers.
        services: The platform.
    """

    def __init__(self, own: Fleet, services: PlatformServices) -> None:
        self._fleet, self._services = own, services
        self._bundle = own.digests[0]
        self._revision = 0

    def settle(self) -> None:
        """Wait until the platform has found the lanes of the servers, and has called every server."""
        wait_for(
            lambda: set(self._fleet.healthy) <= self.in_sync(), "the healthy servers to be in sync", PATIENCE
        )

    def in_sync(self) -> set[str]:
        """Return the names of the servers that the platform shows as in sync."""
        statuses = self._services.runner._parts.reconciler.statuses.known()
        with self._services.store.read() as connection:
            newest = recorded.newest(connection, CHECKPOINT)
        return {
            name
            for name, status in statuses.items()
            if recorded.has(newest, (status.checkpoints or {}).get(CHECKPOINT), "live")
        }

    def revise(self) -> Reached:
        """Record the next revision of the overlay, and wait for it."""
        self._revision += 1
        self._bundle = self._fleet.digests[self._revision]
        return self._recorded(recorded.OVERLAY, [LaneSpec("live", self._bundle, share=1.0)])

    def stage(self) -> Reached:
        """Record a canary of the next revision, and wait for it. The next revision replaces it."""
        following = self._fleet.digests[self._revision + 1]
        lanes = [LaneSpec("live", self._bundle, share=0.9), LaneSpec("canary", following, share=0.1)]
        return self._recorded(recorded.STAGE, lanes)

    def _recorded(self, cause: str, lanes: Sequence[LaneSpec]) -> Reached:
        wanted = [lane.bundle for lane in lanes]
        with self._services.store.write() as connection:
            settings, decision = self._services.settings, LaneDecision(cause, lanes)
            recorded.record(connection, settings, CHECKPOINT, decision, at=utcnow(), actor=PLATFORM.user)
        begun = time.monotonic()
        found, missing = Reached(cause), set(self._fleet.healthy)
        while missing:
            left = begun + PATIENCE - time.monotonic()
            try:
                line = self._fleet.swaps.get(timeout=max(left, 0.001))
            except queue.Empty:
                raise AssertionError(f"{len(missing)} healthy servers have not got the table") from None
            if line["server"] in missing and line["bundles"] == wanted:
                missing.discard(line["server"])
                found.seconds[line["server"]] = line["at"] - begun
        return found


def wait_for(condition: Any, what: str, seconds: float) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: It does not hold in time.
    """
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"waited {seconds:g} s for {what}")
        time.sleep(_POLL_SECONDS)


def cores_used(seconds: float) -> float:
    """Return the cores that this process uses while nothing changes, over some seconds."""
    before, begun = time.process_time(), time.monotonic()
    time.sleep(seconds)
    return (time.process_time() - before) / (time.monotonic() - begun)
