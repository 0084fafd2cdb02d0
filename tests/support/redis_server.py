"""A real Redis or Valkey server on a port that the system chooses, and a proxy that makes it slow."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import components
from real_server import RealServer


class RedisServer(RealServer):
    """A server with its data in a directory of its own, which outlives a kill.

    Args:
        options: Further lines of its configuration.
        tls: Directory with `ca.pem`, `server.pem` and `server.key`; then the port takes TLS only.
    """

    def __init__(self, *options: str, tls: Path | None = None) -> None:
        super().__init__("redis", "redis.log", seconds=30)
        self._options, self._tls = options, tls

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def command(self, *arguments: str | bytes, password: str = "") -> Any:
        """Send a command over a connection of its own. Errors of the server are returned as text."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as stream:
            file = stream.makefile("rb")
            if password:
                stream.sendall(_encoded("AUTH", password))
                _reply(file)
            stream.sendall(_encoded(*arguments))
            return _reply(file)

    def keys(self, pattern: str) -> list[bytes]:
        """The keys that match a pattern."""
        found: list[bytes] = self.command("KEYS", pattern)
        return sorted(found)

    def _spawn(self) -> subprocess.Popen[bytes]:
        tls = (
            []
            if self._tls is None
            else [
                "port 0",
                f"tls-port {self.port}",
                f"tls-cert-file {self._tls}/server.pem",
                f"tls-key-file {self._tls}/server.key",
                f"tls-ca-cert-file {self._tls}/ca.pem",
                "tls-auth-clients no",
            ]
        )
        lines = [
            "bind 127.0.0.1",
            *(tls or [f"port {self.port}"]),
            f"dir {self.directory}",
            "daemonize no",
            'save ""',
            "logfile redis.log",
            *self._options,
        ]
        (self.directory / "redis.conf").write_text("".join(f"{line}\n" for line in lines))
        program = components.program_path("redis-server") or components.program_path("valkey-server")
        return subprocess.Popen(
            [program or "redis-server", "redis.conf"], cwd=self.directory, start_new_session=True
        )

    def _is_up(self, offset: int) -> bool:
        return "eady to accept" in self._text()[offset:] or self._listens()


class SlowProxy:
    """Passes connections on to a server. While `delay` is above 0, replies wait for that many seconds.

    Args:
        port: Port of the server on this machine.

    Attributes:
        delay: Seconds that each part of a reply waits.
        slow_connections: Number of connections, from the first, that are delayed; None: all.
    """

    def __init__(self, port: int) -> None:
        self.delay = 0.0
        self.slow_connections: int | None = None
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._number = 0
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> SlowProxy:
        return self

    def __exit__(self, *_: object) -> None:
        # Otherwise the thread in `accept` takes one more connection.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                return
            self._sockets += [client, server]
            self._number += 1
            number = self._number
            threading.Thread(target=self._pump, args=(client, server, 0), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, number), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, number: int) -> None:
        try:
            while data := source.recv(1 << 16):
                is_slow = self.slow_connections is None or number <= self.slow_connections
                if number and is_slow and self.delay > 0:
                    time.sleep(self.delay)
                target.sendall(data)
        except OSError:
            pass
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _encoded(*arguments: str | bytes) -> bytes:
    parts = [one.encode() if isinstance(one, str) else one for one in arguments]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(one), one) for one in parts)


def _reply(file: Any) -> Any:
    line = file.readline().rstrip(b"\r\n")
    kind, text = line[:1], line[1:]
    if kind in (b"+", b"-"):
        return text.decode()
    if kind == b":":
        return int(text)
    size = int(text)
    if size < 0:
        return None
    if kind == b"$":
        data = file.read(size + 2)
        return data[:-2]
    return [_reply(file) for _ in range(size)]
