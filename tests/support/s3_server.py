"""A real S3-compatible server on a directory, and a proxy that answers 503 or cuts answers."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import components
from real_server import RealServer

ACCESS, SECRET = "scorertest", "scorertestsecret"
BUCKET = "decisions"


class S3Server(RealServer):
    """versitygw on a directory of its own, which outlives a kill."""

    def __init__(self) -> None:
        super().__init__("s3", "server.log")
        (self.directory / "root" / BUCKET).mkdir(parents=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def options(self, endpoint: str | None = None, secret: str = SECRET) -> dict[str, str]:
        """Options of the object storage for `[delta] options`."""
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [
                    str(components.BUILD / "s3" / "versitygw"),
                    "--port",
                    f"127.0.0.1:{self.port}",
                    "posix",
                    str(self.directory / "root"),
                ],
                cwd=self.directory,
                env={**os.environ, "ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _is_up(self, offset: int) -> bool:
        return self._listens()


Fault = Callable[[str, str, int], str | None]
"""Given the method, the path and the number of the request, returns "503", "cut" or None."""


@contextmanager
def faulty_proxy(server: S3Server, fault: Fault) -> Iterator[str]:
    """A proxy in front of the server; gives its endpoint.

    "503" answers without calling the server, "503 after" calls it and answers 503 all the same, and "cut"
    ends the answer in its middle.
    """
    count = [0]
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with lock:
                count[0] += 1
                what = fault(self.command, self.path, count[0])
            if what == "503":
                self._answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
                return
            upstream = HTTPConnection("127.0.0.1", server.port, timeout=30)
            try:
                # The signature covers the host, so the headers stay as they are.
                upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    upstream.putheader(name, value)
                upstream.endheaders(body or None)
                answer = upstream.getresponse()
                content = answer.read()
            except (OSError, HTTPException):
                self._answer(502, [], b"")
                return
            finally:
                upstream.close()
            if what == "503 after":
                self._answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
                return
            headers = [one for one in answer.getheaders() if one[0].lower() not in _HOP]
            self._answer(answer.status, headers, content, cut=what == "cut")

        def _answer(
            self, status: int, headers: list[tuple[str, str]], content: bytes, *, cut: bool = False
        ) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() != "content-length":
                    self.send_header(name, value)
            stated = (int(value) for name, value in headers if name.lower() == "content-length")
            length = next(stated, len(content))
            self.send_header("Content-Length", str(length if self.command == "HEAD" else len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[: len(content) // 2] if cut else content)
            if cut:
                self.close_connection = True

        def do_GET(self) -> None:
            self._handle()

        def do_PUT(self) -> None:
            self._handle()

        def do_POST(self) -> None:
            self._handle()

        def do_DELETE(self) -> None:
            self._handle()

        def do_HEAD(self) -> None:
            self._handle()

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass

    proxy = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_address[1]}"
    finally:
        proxy.shutdown()
        thread.join(30)
        proxy.server_close()


_HOP = {"connection", "keep-alive", "transfer-encoding"}
