"""A real Jaeger, which receives OTLP over gRPC and keeps traces in memory."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import components
from real_server import free_port
from waiting import PATIENCE, wait_until

PROGRAM = components.BUILD / "jaeger" / "all-in-one"


@dataclass(frozen=True)
class Jaeger:
    """A running Jaeger.

    Attributes:
        endpoint: Address of its receiver of OTLP over gRPC, `host:port`.
        api: URL of its API.
    """

    endpoint: str
    api: str

    def trace(self, trace_id: str) -> dict[str, Any] | None:
        """Return a trace as Jaeger shows it, or None while it has no span of it."""
        try:
            found = self._get(f"traces/{trace_id}")["data"]
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise
        return found[0] if found else None

    def services(self) -> list[str]:
        """Return the names of the services that sent spans."""
        return sorted(self._get("services")["data"] or [])

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.api}/{path}", timeout=PATIENCE) as reply:
            return json.load(reply)


@contextmanager
def jaeger(directory: Path) -> Iterator[Jaeger]:
    """Run Jaeger until the block ends. All of its listeners are on the loopback address."""
    for _ in range(5):
        otlp, query = free_port(), free_port()
        with (directory / "jaeger.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    str(PROGRAM),
                    "--collector.otlp.enabled=true",
                    f"--collector.otlp.grpc.host-port=127.0.0.1:{otlp}",
                    "--collector.otlp.http.host-port=127.0.0.1:0",
                    "--collector.grpc-server.host-port=127.0.0.1:0",
                    "--collector.http-server.host-port=127.0.0.1:0",
                    "--query.grpc-server.host-port=127.0.0.1:0",
                    f"--query.http-server.host-port=127.0.0.1:{query}",
                    "--admin.http.host-port=127.0.0.1:0",
                ],
                cwd=directory,
                stdout=log,
                stderr=log,
            )
        running = Jaeger(f"127.0.0.1:{otlp}", f"http://127.0.0.1:{query}/api")
        try:
            wait_until(lambda one=process, known=running: one.poll() is not None or _answers(known), "Jaeger")
            if process.poll() is None:
                yield running
                return
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(PATIENCE)
    raise AssertionError(f"Jaeger does not start:\n{(directory / 'jaeger.log').read_text()[-2000:]}")


def _answers(known: Jaeger) -> bool:
    try:
        known.services()
    except OSError:
        return False
    return True
