"""``scorer serve``: from settings to SERVING, and from SIGTERM to a clean end.

Boot order: log → settings (no port is bound for bad ones; exit 64) → data plane listens and
answers NOT_SERVING → control service → last known good table, else the registry → SERVING →
the watcher follows the registry. Stop order: NOT_SERVING → requests in flight are answered →
decision log sealed → exit 0. A second signal ends the process at once, exit 1.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scorer.errors import ConfigError, ScorerError
from scorer.events import EventLog

if TYPE_CHECKING:
    from scorer.config import Settings
    from scorer.control.controller import Controller
    from scorer.control.dataplane import DataPlane
    from scorer.control.service import ControlService
    from scorer.control.watcher import Watcher
    from scorer.control.webhook import Listener
    from scorer.learn.schedule.in_server import ServerSchedule

_EVENT_SECONDS = 0.1


def run(
    config: Path,
    *,
    role: str | None = None,
    events: EventLog | None = None,
    start: Callable[[Settings], DataPlane] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code.

    Args:
        config: The settings file.
        role: In place of what the settings say.
        events: In place of JSON lines on stderr.
        start: In place of the native data plane, for tests.
    """
    events = events or EventLog()
    # Libraries' own words on stderr would break the one-event-per-line form.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    events.take_over_logging()
    try:
        from scorer import config as settings_module

        settings = settings_module.load(config, role=role)
    except ConfigError as error:
        for line in str(error).splitlines():
            events.error("config_invalid", error=line)
        return error.exit_code
    import uvloop

    from scorer.control import tls_versions

    tls_versions.apply(settings.server.tls)
    try:
        _keep_private(settings)
        return uvloop.run(_Serving(settings, events, start).until_stopped())
    except ScorerError as error:
        events.error("start_failed", error=str(error))
        return error.exit_code
    except Exception as error:
        events.defect("failed", error)
        return 1


class _Serving:
    """One run of the server."""

    def __init__(
        self, settings: Settings, events: EventLog, start: Callable[[Settings], DataPlane] | None
    ) -> None:
        self._settings = settings
        self._events = events
        self._start = start
        self._stop = asyncio.Event()
        self._webhooks_at: str | None = None

    @property
    def _is_shadow(self) -> bool:
        """A shadow pool follows no alias and does not learn: settings may be shared with live servers."""
        return self._settings.server.role == "shadow"

    async def until_stopped(self) -> int:
        from scorer.control.dataplane import NativeDataPlane

        self._take_signals()
        plane = await asyncio.to_thread(self._start or NativeDataPlane, self._settings)
        self._events.follow(plane.events)
        pump = asyncio.create_task(self._pump())
        try:
            await self._serve(plane)
        finally:
            # Also where boot failed: the log is sealed and the runtime joined before Python ends.
            await self._drain(plane)
            pump.cancel()
        self._events.info("exited", code=0)
        return 0

    async def _serve(self, plane: DataPlane) -> None:
        from scorer import bridge
        from scorer.control import service as control
        from scorer.control.controller import Controller
        from scorer.control.state import StateDirectory
        from scorer.control.watcher import Watcher
        from scorer.registry import open_registry

        state = StateDirectory(self._settings.server.state_dir)
        await asyncio.to_thread(state.prepare)
        source = open_registry(self._settings.registry.location)
        controller = Controller(self._settings, plane, source, state, self._events)
        watcher = Watcher(controller)
        started = _process_started()
        service = control.ControlService(
            controller,
            watcher,
            version=bridge.__version__,
            build_profile=bridge.build_profile,
            started_at_ms=int(started * 1e3),
        )
        server, address = await control.start(
            service, self._settings.server.control_listen, self._settings.server.tls
        )
        keys = self._fetch_keys()
        webhooks: Listener | None = None
        learning: ServerSchedule | None = None
        try:
            webhooks = await self._hear_webhooks(controller, watcher)
            await controller.restore()
            learning = await asyncio.to_thread(self._learn)
            await self._announce_when_ready(controller, watcher, service, address, started)
        finally:
            controller.drain()
            if keys is not None:
                keys.cancel()
            if learning is not None:
                learning.stop()
            await self._drain(plane)
            if webhooks is not None:
                await webhooks.stop()
            # A slow registry must not hold up the end: what is under way is broken off.
            source.close()
            await server.stop(grace=0.5)
            state.release()

    def _fetch_keys(self) -> asyncio.Task[None] | None:
        settings = self._settings.identity
        if not settings.enabled or settings.jwt.keys_url is None:
            return None
        from scorer.control.keys import KeyFetcher

        return asyncio.create_task(KeyFetcher(settings.jwt, self._events).run())

    def _learn(self) -> ServerSchedule | None:
        settings = self._settings.learning
        if settings.workspace is None or self._is_shadow:
            return None
        from scorer.learn.schedule.in_server import ServerSchedule

        return ServerSchedule(settings.workspace, settings.config, self._events)

    async def _hear_webhooks(self, controller: Controller, watcher: Watcher) -> Listener | None:
        settings = self._settings.server
        if settings.webhook_listen is None or settings.webhook_secret_file is None or self._is_shadow:
            return None
        from scorer.control.webhook import Deliveries, Listener, read_secret

        secret = await asyncio.to_thread(read_secret, settings.webhook_secret_file)
        deliveries = Deliveries(secret, lambda: controller.settings.aliases)
        listener = Listener(deliveries, watcher.wake, self._events)
        self._webhooks_at = await listener.start(settings.webhook_listen)
        return listener

    async def _announce_when_ready(
        self, controller: Controller, watcher: Watcher, service: ControlService, address: str, started: float
    ) -> None:
        """Runs until the stop signal; says once when everything is served."""
        if not controller.is_ready():
            # Where the last known good table serves, the registry may be slow: it is asked afterwards.
            await watcher.poll()
        watching = asyncio.create_task(watcher.run())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            if not controller.is_ready():
                self._events.warning(
                    "not_serving",
                    missing=controller.missing(),
                    registry=watcher.error or "reachable",
                )
            ready = asyncio.create_task(controller.ready.wait())
            await asyncio.wait([ready, stopping], return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            if controller.ready.is_set():
                self._announce(controller, service, address, started)
            await stopping
        finally:
            watching.cancel()
            stopping.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    def _announce(
        self, controller: Controller, service: ControlService, address: str, started: float
    ) -> None:
        from scorer.control.service import resident_bytes

        service.ready_after_ms = (time.time() - started) * 1e3
        found = controller.plane.addresses()
        self._events.info(
            "serving",
            grpc=found.grpc,
            control=address,
            metrics=found.metrics,
            **({} if self._webhooks_at is None else {"webhooks": self._webhooks_at}),
            ready_after_ms=round(service.ready_after_ms, 1),
            resident_mb=round(resident_bytes() / 2**20, 1),
            lane_table=controller.table.version,
            pid=os.getpid(),
        )

    async def _drain(self, plane: DataPlane) -> None:
        await asyncio.to_thread(plane.drain, self._settings.server.drain_seconds)

    async def _pump(self) -> None:
        from scorer.surroundings import Surroundings

        surroundings = Surroundings(self._settings.server.threads, self._events)
        while True:
            await asyncio.sleep(_EVENT_SECONDS)
            self._events.forward_pending()
            surroundings.look()

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            self._events.error("killed", signal=signal.Signals(number).name)
            sys.stderr.flush()
            # Not sys.exit: that would wait for the very threads that are stuck.
            os._exit(1)
        self._events.info("stopping", signal=signal.Signals(number).name)
        self._stop.set()


def _keep_private(settings: Settings) -> None:
    """Keep other users out of the files that this process writes, and requests out of core dumps."""
    os.umask(os.umask(0o027) | 0o027)
    if not settings.server.core_dumps:
        from scorer import bridge

        bridge.forbid_core_dumps()


def _process_started() -> float:
    """When this process began, seconds since the epoch: interpreter start and imports count as start-up."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.time() - (uptime - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return time.time() - time.process_time()
