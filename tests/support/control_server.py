"""A control service with a fake data plane in this process."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from control_world import World
from fakes import fake_verify

from scorer.control import service as control
from scorer.control.controller import Controller
from scorer.registry import Registry


class Served:
    """A control service over a fake data plane, in a separate thread. A test can stop and start it."""

    def __init__(self, base: Path) -> None:
        self.world = World(base, Registry(base / "registry", verify=fake_verify))
        self.first = self.world.push("a", live=True)
        self.world.push("x", "action-authorise", live=True)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.address = "127.0.0.1:0"
        self.controller: Controller
        self.start()

    def start(self) -> None:
        async def starting() -> None:
            self.controller, watcher = await self.world.boot()
            await self.controller.restore_observers()
            service = control.ControlService(
                self.controller, watcher, version="1.2.3", build_profile="test", started_at_ms=5
            )
            self.server, self.address = await control.start(service, self.address)

        asyncio.run_coroutine_threadsafe(starting(), self.loop).result(30)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(None), self.loop).result(30)

    def close(self) -> None:
        self.world.plane.may_load.set()
        self.stop()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(30)
        self.loop.close()
        if self.world.state is not None:
            self.world.state.release()
