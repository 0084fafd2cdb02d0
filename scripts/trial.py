"""Test an installed `scorer` as a separate program: store a bundle, serve it and send a request.

This module does not import scorer, because the tested interpreter may have another version or processor, or
run in another root file system. `prefix` starts it, such as `["/tmp/env/bin/python"]`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TRAINING = ["xgboost", "lightgbm", "sklearn", "numpy", "pandas", "pyarrow", "scipy", "duckdb"]
FEATURES = ["amount", "hour", "count_24h", "distance"]
SETTINGS = """\
[server]
listen = "127.0.0.1:0"
metrics_listen = "off"
control_listen = "127.0.0.1:0"
[registry]
path = "registry"
[log]
dir = "decisions"
[checkpoints."fraud.checkout"]
kind = "score"
alias = "fraud-checkout@live"
p99_ms = 1000.0
mode = "observe"
"""
ASK = """
import sys
from scorer.client import Client
with Client(sys.argv[1], timeout=120.0) as client:
    answer = client.score("fraud.checkout", dict(zip(sys.argv[2].split(","), (10.0, 12.0, 1.0, 2.0))))
    print(answer.decision, answer.source if hasattr(answer, "source") else "")
"""
PROBE = """
import importlib.util, json, platform, sys
from scorer import bridge
print(json.dumps({
    "python": platform.python_version(), "machine": platform.machine(), "scorer": bridge.__version__,
    "training": [name for name in sys.argv[1].split(",") if importlib.util.find_spec(name)],
}))
"""


class TrialError(Exception):
    """The installation does not work as expected."""


@dataclass
class Trial:
    """One installation, which is tested in its own directory."""

    prefix: Sequence[str]
    folder: Path
    environment: dict[str, str]
    seconds: float = 120.0
    serve: Sequence[str] = ()
    """Command that serves; empty: `scorer serve` with the settings of the trial."""

    def run(self, bundles: Sequence[str]) -> str:
        """Store bundles, serve them, send a request to the first, and return a line about the result.

        Args:
            bundles: Directories with the names of the bundles.
        """
        found = json.loads(self._python("-c", PROBE, ",".join(TRAINING)))
        if found["training"]:
            raise TrialError(f"a serving installation contains {', '.join(found['training'])}")
        if not self.serve:
            (self.folder / "scorer.toml").write_text(SETTINGS)
        for bundle in bundles:
            digest = self._python("-m", "scorer.cli", "registry", "push", bundle).split()[0]
            self._python("-m", "scorer.cli", "registry", "alias", f"{Path(bundle).name}@live", digest)
        with self._serving() as address:
            answer = self._python("-c", ASK, address, ",".join(FEATURES)).split()
        return f"Python {found['python']} {found['machine']}: scorer {found['scorer']} answered {answer[0]!r}"

    def _python(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self.prefix, *arguments], cwd=self.folder, env=self.environment, capture_output=True,
            text=True, timeout=self.seconds, check=False,
        )  # fmt: skip
        if done.returncode:
            raise TrialError(
                f"{' '.join(arguments[:4])[:80]}: {(done.stderr or done.stdout).strip()[-1500:]}"
            )
        return done.stdout

    @contextmanager
    def _serving(self) -> Iterator[str]:
        command = self.serve or [*self.prefix, "-m", "scorer.cli", "serve", "--config", "scorer.toml"]
        server = subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        watchdog = threading.Timer(self.seconds, server.kill)
        watchdog.start()
        try:
            yield _address(server)
        finally:
            server.terminate()
            try:
                server.wait(self.seconds)
            finally:
                watchdog.cancel()
                server.kill()
        # A program that confines the server ends by the signal and ends the server.
        if server.returncode not in (0, -signal.SIGTERM if self.serve else 0):
            raise TrialError(f"the server ended with exit code {server.returncode}")


def _address(server: subprocess.Popen[bytes]) -> str:
    """Wait for the event `serving`, and return the address of the server."""
    stderr = server.stderr
    if stderr is None:
        raise TrialError("the server's events cannot be read")
    said: list[str] = []
    for line in stderr:
        said.append(line.decode(errors="replace"))
        event: dict[str, Any] = json.loads(line) if line.startswith(b"{") else {}
        if event.get("event") == "serving":
            # Later output is read, so that the server does not block on a full pipe.
            threading.Thread(target=stderr.read, daemon=True).start()
            return str(event["grpc"][0])
    raise TrialError("the server does not serve: " + "".join(said)[-1500:])


def clean_environment(**more: str) -> dict[str, str]:
    """Return environment variables without those of this project and without a compiler on the path."""
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    return {"PATH": "/nonexistent", "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1", **kept, **more}


BUILD = """
import sys
from pathlib import Path
from bundles import tiny_action_bundle, tiny_score_bundle
tiny_score_bundle(Path(sys.argv[1]) / "fraud-checkout")
tiny_action_bundle(Path(sys.argv[1]) / "action-authorise")
"""


@contextmanager
def sample_bundles() -> Iterator[Path]:
    """Yield a directory with a small bundle of each kind, built by this project's environment."""
    with tempfile.TemporaryDirectory(prefix="trial-") as folder:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'tests' / 'support'}"}
        subprocess.run([sys.executable, "-c", BUILD, folder], env=environment, check=True)
        yield Path(folder)
