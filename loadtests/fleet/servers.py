"""A process with the control services of several servers, each with its own state and a simulated data plane.

The process writes one JSON line when all of them serve, and one for each change of lanes. It ends when its
standard input is closed.

    python -m loadtests.fleet.servers DIRECTORY REGISTRY NAME... [--slow SECONDS]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtests.fleet.plane import SimulatedPlane
from scorer import config
from scorer.control import service as control
from scorer.control.controller import Controller
from scorer.control.state import StateDirectory
from scorer.control.watcher import Watcher
from scorer.events import EventLog
from scorer.registry import Registry

CHECKPOINT = "action.authorise"
BUNDLE = "action-authorise"
SETTINGS = f"""
[registry]
poll_ms = 60000
[checkpoints."{CHECKPOINT}"]
kind = "action"
alias = "{BUNDLE}@live"
"""
_printing = threading.Lock()


class _Silent:
    """Discards the events of a server."""

    def write(self, data: bytes, /) -> int:
        return len(data)

    def flush(self) -> None:
        pass


def say(line: Mapping[str, Any]) -> None:
    """Write a line for the process that measures."""
    with _printing:
        print(json.dumps(line), flush=True)


async def start(directory: Path, registry: Path, name: str, slow: float) -> tuple[str, Any, StateDirectory]:
    """Start the control service of one server; return its address and what keeps it alive.

    Args:
        directory: Parent of the server's directory.
        registry: Directory of the registry.
        name: Name of the server.
        slow: Seconds that each load of a bundle takes once the server has started.
    """
    place = directory / name
    place.mkdir(parents=True)

    def swapped(bundles: Mapping[str, list[str]]) -> None:
        # The clock is the same in all processes of a machine.
        say({"server": name, "at": time.monotonic(), "bundles": bundles.get(CHECKPOINT, [])})

    settings = config.parse(SETTINGS, base=place, environment={})
    state = StateDirectory(settings.server.state_dir)
    state.prepare()
    plane = SimulatedPlane(swapped)
    controller = Controller(settings, plane, Registry(registry), state, EventLog(_Silent()))
    watcher = Watcher(controller)
    await controller.restore()
    await watcher.poll()
    plane.slow = slow
    service = control.ControlService(
        controller, watcher, version="simulated", build_profile="release", started_at_ms=1
    )
    server, address = await control.start(service, "127.0.0.1:0")
    return address, server, state


async def serve(directory: Path, registry: Path, names: Sequence[str], slow: float) -> None:
    """Start the servers, and serve until standard input is closed."""
    # Bundles are loaded by threads; a server that loads for long must not occupy the threads of all others.
    started = [await start(directory, registry, name, slow) for name in names]
    say({"serving": dict(zip(names, (address for address, _, _ in started), strict=True))})
    await asyncio.to_thread(sys.stdin.read)
    await asyncio.gather(*(server.stop(None) for _, server, _ in started))
    for _, _, state in started:
        state.release()


def main() -> None:
    """Parse the arguments and serve."""
    parser = argparse.ArgumentParser(description="Serve the control services of simulated servers.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("registry", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds that each load takes")
    own = parser.parse_args()
    asyncio.run(serve(own.directory, own.registry, own.names, own.slow))


if __name__ == "__main__":
    main()
