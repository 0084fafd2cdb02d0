"""The HTTP listener of the shipper: /metrics for Prometheus and /health for probes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from scorer.errors import ShipError

_REQUEST_SECONDS = 5.0


class _Server(HTTPServer):
    """Answers one request after another, so that callers cannot use up threads."""

    address_family = socket.AF_INET
    request_queue_size = 16

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a caller that has gone."""


class _Server6(_Server):
    """The same for IPv6."""

    address_family = socket.AF_INET6


class MetricsListener:
    """A thread that serves /metrics and /health.

    Args:
        address: `host:port` to listen on; port 0 lets the system choose.
        text: Returns the metrics.

    Attributes:
        address: The address in use.

    Raises:
        ShipError: The address cannot be used.
    """

    def __init__(self, address: str, text: Callable[[], str]) -> None:
        host, _, port = address.rpartition(":")
        server = _Server6 if host.startswith("[") else _Server

        class Handler(BaseHTTPRequestHandler):
            timeout = _REQUEST_SECONDS

            def do_GET(self) -> None:
                known: dict[str, Callable[[], str]] = {"/metrics": text, "/health": lambda: "ok\n"}
                answer = known.get(self.path.partition("?")[0])
                body = ("not found: GET /metrics or /health\n" if answer is None else answer()).encode()
                self.send_response(404 if answer is None else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        try:
            self._server = server((host.strip("[]"), int(port)), Handler)
        except OSError as error:
            raise ShipError(
                f"metrics_listen {address}: {error.strerror}; set another address, or port 0"
            ) from None
        bound = self._server.server_address
        self.address = f"{host}:{bound[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and end the listener's thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_REQUEST_SECONDS)
