"""Receivers of messages on this machine: HTTP (normal, slow or rejecting) and a minimal SMTP server."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


class HttpReceiver:
    """Records requests. `answer` returns the status of the response to each of them."""

    def __init__(self, answer: Callable[[Received], int] = lambda _: 204, location: str = "") -> None:
        self.received: list[Received] = []
        self.answer = answer
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = Received(self.path, dict(self.headers), body)
                receiver.received.append(request)
                self.send_response(receiver.answer(request))
                if location:
                    self.send_header("Location", location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        ThreadingHTTPServer.daemon_threads = True
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    def __enter__(self) -> HttpReceiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class SmtpReceiver:
    """Accepts every mail and records it."""

    def __init__(self) -> None:
        self.mails: list[str] = []
        receiver = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(b"220 here\r\n")
                while line := self.rfile.readline():
                    command = line[:4].upper()
                    if command == b"DATA":
                        self.wfile.write(b"354 go on\r\n")
                        lines = []
                        while (part := self.rfile.readline()) not in (b".\r\n", b""):
                            lines.append(part)
                        receiver.mails.append(b"".join(lines).decode())
                    self.wfile.write(b"221 bye\r\n" if command == b"QUIT" else b"250 fine\r\n")
                    if command == b"QUIT":
                        return

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    def __enter__(self) -> SmtpReceiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
