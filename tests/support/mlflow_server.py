"""A real MLflow server (SQLite, artifact proxy) in a process of its own, from ``.build/mlflow``.

::

    with start_mlflow(directory) as mlflow:
        mlflow.url, mlflow.location            # http://..., mlflow:http://...
        mlflow.kill(); mlflow.start()          # the same port and data again
        mlflow.run_python(code, argument)      # in the environment of MLflow, with this project's modules
        with serve_model(mlflow, "models:/fraud-checkout@live", directory) as url: ...
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import components
from waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / ".build/mlflow/bin/mlflow"


class MlflowServer:
    """A process that tests can kill and start again over the same data."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.location = f"mlflow:{self.url}"
        self._key = base64.urlsafe_b64encode(os.urandom(32)).decode()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def artifacts(self) -> Path:
        """Directory of the artifacts."""
        return self.directory / "artifacts"

    def start(self) -> None:
        """Start the server and wait until it responds."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    PROGRAM,
                    "server",
                    f"--backend-store-uri=sqlite:///{self.directory}/mlflow.db",
                    f"--artifacts-destination={self.artifacts}",
                    "--host=127.0.0.1",
                    f"--port={self.port}",
                    "--workers=1",
                ],
                cwd=self.directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={
                    **_inherited(),
                    "MLFLOW_DISABLE_TELEMETRY": "true",
                    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                    "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": self._key,
                    # Makes a new webhook effective at once. By default the server
                    # caches the list for a minute.
                    "MLFLOW_WEBHOOK_CACHE_TTL": "0",
                    # Without these settings, MLflow delivers webhooks only over https to public addresses.
                    "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http",
                    "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
                },
            )
        wait_until(self._answers, "MLflow responds", seconds=PATIENCE * 3)

    def kill(self) -> None:
        """Kill the server and its workers, as in a crash."""
        if self._process is not None:
            os.killpg(self._process.pid, 9)
            self._process.wait(PATIENCE)
            self._process = None

    def call_rest(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call the REST API without code of this project."""
        request = urllib.request.Request(
            f"{self.url}/api/2.0/mlflow/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            result: dict[str, Any] = json.load(answer)
        return result

    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Move an alias as MLflow's user interface does."""
        self.call_rest("POST", "registered-models/alias", {"name": name, "alias": alias, "version": version})

    @property
    def client_environment(self) -> dict[str, str]:
        """Environment of a program that uses this server and imports this project from its sources."""
        return {
            **_inherited(),
            "PATH": f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "python"),
            "MLFLOW_TRACKING_URI": self.url,
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }

    def run_python(self, code: str, *arguments: str) -> str:
        """Run code with the packages of MLflow and this project, and return its standard output."""
        done = subprocess.run(
            [PROGRAM.with_name("python"), "-c", code, *arguments],
            cwd=self.directory,
            env=self.client_environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE * 5,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "log").read_text()[-2000:]
        with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
            return bool(answer.status == 200)


@contextmanager
def start_mlflow(directory: Path) -> Iterator[MlflowServer]:
    """Run a server over a directory. The test is skipped if MLflow is not installed."""
    components.require("MLflow")
    server = MlflowServer(directory)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextmanager
def serve_model(mlflow: MlflowServer, uri: str, directory: Path) -> Iterator[str]:
    """Run ``mlflow models serve`` for a model in the environment of MLflow, and yield its address.

    Args:
        mlflow: The running server that has the model.
        uri: Address of the model, such as ``models:/name@alias``.
        directory: Directory for the log.
    """
    port, path = _free_port(), directory / "model.log"
    with path.open("ab") as log:
        process = subprocess.Popen(
            [PROGRAM, "models", "serve", "--model-uri", uri, "--env-manager", "local",
             "--host", "127.0.0.1", "--port", str(port)],
            cwd=directory,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=mlflow.client_environment,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, path.read_text()[-4000:]
        with urllib.request.urlopen(f"{url}/ping", timeout=5) as answer:
            return bool(answer.status == 200)

    try:
        wait_until(answers, "the model responds", seconds=PATIENCE * 5)
        yield url
    finally:
        os.killpg(process.pid, 9)
        process.wait(PATIENCE)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _inherited() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("SCORER_", "MLFLOW_", "PYTHON"))}
