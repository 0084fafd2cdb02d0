"""The process of ``scorer platform serve``, from its settings to a graceful stop."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from scorer.durable import write_atomically
from scorer.errors import ConfigError, ScorerError
from scorer.events import EventLog
from scorer.memory import bound_memory, keep_started_objects
from scorer.web.connections import HEAD_BYTES, bounded

if TYPE_CHECKING:
    from scorer.release.open import PlatformServices
    from scorer.release.settings import PlatformFile

_GRACE_SECONDS = 5


def run(config: Path, *, ready_file: Path | None = None) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code.

    The process writes one JSON event per line to stderr. The event `serving` contains the address.

    Args:
        config: The settings file.
        ready_file: File that receives the URL when the server is ready.
    """
    bound_memory()
    events = EventLog()
    events.take_over_logging()
    try:
        from scorer.release.settings import PlatformFile

        settings = PlatformFile.load(config)
    except ConfigError as error:
        for line in str(error).splitlines():
            events.error("bad_settings", error=line)
        return error.exit_code
    try:
        listener = _listen(settings.platform.listen)
    except OSError as error:
        events.error(
            "cannot_listen",
            address=settings.platform.listen,
            error=f"{error.strerror}; stop what listens there, or change platform.listen",
        )
        return 1
    with listener:
        try:
            return _serve(_with_address(settings, listener), listener, events, ready_file)
        except ScorerError as error:
            events.error("cannot_start", error=str(error))
            return error.exit_code


def _serve(settings: PlatformFile, listener: socket.socket, events: EventLog, ready_file: Path | None) -> int:

    create_app = importlib.import_module("scorer.web.app").create_app
    from scorer.release.open import open_service

    platform = open_service(settings, events=events)
    try:
        app = create_app(platform, settings)
        server = _Server(
            uvicorn.Config(
                app,
                http=bounded(settings.web, app.state.web.counters),
                ws="none",
                h11_max_incomplete_event_size=HEAD_BYTES,
                # A last resort. uvicorn also counts connections that are being closed, so a limit close to
                # `max_connections` would reject users while an attacker's connections are being closed.
                limit_concurrency=2 * settings.web.max_connections + 512,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            ),
            platform,
            events,
        )
        keep_started_objects()
        platform.start()
        url = f"http://{settings.platform.listen}"
        server.on_ready = lambda: _ready(url, settings, platform, events, ready_file)
        server.run(sockets=[listener])
    finally:
        platform.close()
    events.info("stopped")
    return 0


def _ready(
    url: str, settings: PlatformFile, platform: PlatformServices, events: EventLog, ready_file: Path | None
) -> None:
    events.info(
        "serving",
        address=settings.platform.listen,
        url=settings.platform.public_url or url,
        database=platform.store.name,
        registry=settings.platform.registry,
        checkpoints=sorted(settings.checkpoints),
        fleet=[member.name for member in settings.fleet],
        pid=os.getpid(),
    )
    if ready_file is not None:
        write_atomically(ready_file, f"{url}\n".encode())


class _Server(uvicorn.Server):
    """Exits with code 0 on a signal, and ends requests that wait for events."""

    def __init__(self, config: uvicorn.Config, platform: PlatformServices, events: EventLog) -> None:
        super().__init__(config)
        self.on_ready: Any = None
        self._platform = platform
        self._events = events

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self.on_ready is not None:
            self.on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._on) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on(self, number: int, _frame: object) -> None:
        if self.should_exit:
            self._events.error("killed", signal=signal.Signals(number).name)
            sys.stderr.flush()
            os._exit(1)
        self._events.info("stopping", signal=signal.Signals(number).name)
        self._platform.stopping = True
        self.should_exit = True


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, int(port)), family=family, backlog=512)


def _with_address(settings: PlatformFile, listener: socket.socket) -> PlatformFile:
    """Return the settings with the actual port in place of port 0, for links and pages."""
    from scorer.config.fields import host_port

    host, port = listener.getsockname()[:2]
    address = host_port(host, port)
    return settings.model_copy(update={"platform": settings.platform.model_copy(update={"listen": address})})
