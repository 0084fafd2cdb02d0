"""The demo's server, started for a measurement with its own ports and log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadtests.figures import ROOT
from loadtests.openloop import Method
from scorer.loadtest import make_settings
from scorer.loadtest.plan import make_plan

READY_SECONDS = 60.0
SELECTS = "action.authorise"
"""Name of the demo's checkpoint of kind action."""


def demo_settings(demo: Path) -> Path:
    """Return the path of the demo's settings. Run the demo first if they do not exist."""
    settings = demo / "scorer.toml"
    if not settings.exists():
        command = [sys.executable, "-m", "examples.demo", "--output", str(demo)]
        subprocess.run(command, cwd=ROOT, check=True)
    return settings


def address(serving: Mapping[str, Any], *, unix: bool = False) -> str:
    """Return the address of a server: its Unix socket, or host and port.

    Args:
        serving: The event of `server`.
        unix: Whether to return the Unix socket.
    """
    return next(str(one) for one in serving["grpc"] if str(one).startswith("unix:") == unix)


def selections(target: str) -> Method:
    """Return encoded requests of SelectAction at the demo's checkpoint. Each is sent with a new id.

    Args:
        target: Address of a running server of the demo, whose schema the requests have.
    """
    wanted = {"target": target, "methods": "select_action", "checkpoints": [SELECTS], "rate": 1.0}
    plan = make_plan(make_settings(wanted))
    path = "/scorer.v1.ScoringService/SelectAction"
    return Method(name="select", path=path, requests=plan.payloads[0], reply="action", fresh_id=True)


@contextmanager
def server(settings: Path, *, core: int | None = None, uds: str | None = None) -> Iterator[dict[str, Any]]:
    """Run `scorer serve` and yield its event `serving`.

    Args:
        settings: The settings file. Its addresses and directories are replaced.
        core: The only core that the server may use. By default it may use the cores of this process.
        uds: Additional Unix socket to listen on, relative to the directory of the measurement.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        variables = {
            "SCORER_SERVER__LISTEN": "127.0.0.1:0",
            "SCORER_SERVER__CONTROL_LISTEN": "127.0.0.1:0",
            "SCORER_SERVER__METRICS_LISTEN": "127.0.0.1:0",
            "SCORER_SERVER__STATE_DIR": f"{scratch}/state",
            "SCORER_LOG__DIR": f"{scratch}/decisions",
        }
        if uds is not None:
            variables["SCORER_SERVER__UDS"] = f"{scratch}/{uds}"
        pinned = [] if core is None else ["taskset", "-c", str(core)]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SCORER_")}
        events = Path(scratch, "events.jsonl")
        with events.open("wb") as sink:
            process = subprocess.Popen(
                [*pinned, sys.executable, "-m", "scorer.cli", "serve", "--config", str(settings)],
                env=inherited | variables,
                stderr=sink,
            )
        try:
            yield _announced(process, events)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _announced(process: subprocess.Popen[bytes], events: Path) -> dict[str, Any]:
    """Wait for the event `serving`."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        for line in events.read_text().splitlines():
            event: dict[str, Any] = json.loads(line)
            if event.get("event") == "serving":
                return event
        time.sleep(0.05)
    raise RuntimeError(f"the demo's server did not start; its output:\n{events.read_text()}")
