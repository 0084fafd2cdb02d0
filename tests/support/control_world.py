"""A registry with bundles, and a controller and watcher with a fake data plane."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakes import FakeDataPlane, RecordedEvents, fake_bundle

from scorer import config
from scorer.control.controller import Controller
from scorer.control.state import StateDirectory
from scorer.control.watcher import Watcher
from scorer.events import EventLog
from scorer.registry import Registry

SETTINGS = """
[checkpoints."fraud.checkout"]
kind = "score"
alias = "fraud-checkout@live"
[checkpoints."action.authorise"]
kind = "action"
alias = "action-authorise@live"
"""
FRAUD, ACTION = "fraud.checkout", "action.authorise"


@dataclass
class World:
    """A registry with bundles, and a server that a test can restart any number of times."""

    base: Path
    registry: Registry
    plane: FakeDataPlane = field(default_factory=FakeDataPlane)
    log: RecordedEvents = field(default_factory=RecordedEvents)
    state: StateDirectory | None = None
    settings: str = SETTINGS
    make_plane: Callable[[], FakeDataPlane] = FakeDataPlane

    def push(self, content: str, name: str = "fraud-checkout", *, live: bool = False) -> str:
        source = self.base / f"built-{name}-{content}"
        if not source.exists():
            fake_bundle(source, name=name, content=content)
        digest = self.registry.push(source)
        if live:
            self.registry.alias(name, "live", digest)
        return digest

    def new_process(self) -> tuple[Controller, Watcher]:
        """Create the controller and watcher of a restarted server. Only files remain."""
        self.plane = self.make_plane()
        settings = config.parse(self.settings, base=self.base, environment={})
        if self.state is not None:
            self.state.release()
        self.state = state = StateDirectory(settings.server.state_dir)
        state.prepare()
        source = Registry(self.registry.path)
        controller = Controller(settings, self.plane, source, state, EventLog(self.log))
        return controller, Watcher(controller, jitter=lambda: 0.5)

    async def boot(self) -> tuple[Controller, Watcher]:
        controller, watcher = self.new_process()
        await controller.restore()
        await watcher.poll()
        return controller, watcher

    def served(self, checkpoint: str = FRAUD) -> str:
        (lane,) = self.plane.tables[-1].checkpoints[checkpoint]
        return lane.bundle

    def stored(self, digest: str) -> Path:
        return self.registry.resolve(digest).path


def runs(test: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[World], None]:
    def wrapper(world: World) -> None:
        asyncio.run(test(world))

    wrapper.__name__ = test.__name__
    return wrapper


def alter(file: Path) -> None:
    file.chmod(0o644)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
