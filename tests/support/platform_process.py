"""Runs ``scorer platform serve`` as a process of its own, on a port that the system chooses.

::

    secret = initialised(tmp_path)                      # database, an admin and the admin's token
    with running(tmp_path) as platform:
        httpx.get(f"{platform.url}/login")
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from waiting import wait_until

SETTINGS = """
[platform]
listen = "127.0.0.1:0"
{platform}
[web]
{web}
[checkpoints."fraud.checkout"]
alias = "fraud-checkout@live"
"""


@dataclass(frozen=True)
class PlatformProcess:
    """A platform process that serves."""

    url: str
    pid: int
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def memory(self, field: str = "VmRSS") -> int:
        """Return the resident memory in bytes; `VmHWM`: its peak."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        size = re.search(rf"{field}:\s+(\d+) kB", status)
        assert size
        return int(size[1]) << 10

    def events(self, name: str) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def metric(self, line: str) -> float:
        """Return the value of a line of the metrics; 0 if there is no such line."""
        text = httpx.get(f"{self.url}/api/v1/metrics", timeout=30).text
        value = re.search(rf"^{re.escape(line)} (\S+)$", text, re.MULTILINE)
        return float(value[1]) if value else 0.0


def write_settings(directory: Path, *, platform: str = "", web: str = "", more: str = "") -> Path:
    """Write platform.toml into a directory."""
    file = directory / "platform.toml"
    file.write_text(SETTINGS.format(platform=platform, web=web) + more)
    return file


def initialised(directory: Path) -> str:
    """Create the database and an admin; return the admin's token."""
    done = subprocess.run(
        [sys.executable, "-m", "scorer.cli", "platform", "init", "--json", "--config", "platform.toml"],
        cwd=directory, check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    token: str = json.loads(done.stdout)["token"] and json.loads(done.stdout)["secret"]
    return token


@contextmanager
def running(directory: Path, *, name: str = "one") -> Iterator[PlatformProcess]:
    """Run the platform of a directory's platform.toml."""
    ready, log = directory / f"{name}.ready", directory / f"{name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "scorer.cli", "platform", "serve",
                "--config", "platform.toml", "--ready-file", str(ready),
            ],
            cwd=directory, stderr=output, stdout=output, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        try:
            wait_until(
                lambda: ready.exists() or process.poll() is not None, "the platform serves", seconds=90
            )
            assert process.poll() is None, log.read_text()
            yield PlatformProcess(ready.read_text().strip(), process.pid, log)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
