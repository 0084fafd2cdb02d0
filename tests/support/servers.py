"""Runs ``scorer serve`` as a process of its own, on ports that the system chooses.

::

    with start_server(directory) as server:          # waits until it serves
        channel = server.channel()                    # grpc.Channel to the data plane
        server.event("swapped")                       # next event of that name, or a timeout
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]

# The mode is `observe` so that the results of tests do not depend on latency on a busy machine.
SCORE = (
    '[checkpoints."fraud.checkout"]\nkind = "score"\nalias = "fraud-checkout@live"\n'
    'p99_ms = 1000.0\nmode = "observe"\n'
)
ACTION = (
    '[checkpoints."action.authorise"]\nkind = "action"\nalias = "action-authorise@live"\n'
    'p99_ms = 1000.0\nmode = "observe"\n'
)


def settings(
    checkpoints: str = SCORE + ACTION, *, server: str = "", registry: str = "", log: str = ""
) -> str:
    """Return a settings file with free ports and fast polling. Each section can be extended."""
    return (
        '[server]\nlisten = "127.0.0.1:0"\nmetrics_listen = "127.0.0.1:0"\ncontrol_listen = "127.0.0.1:0"\n'
        f"{server}\n[registry]\npoll_ms = 20\n{registry}\n[log]\n{log}\n{checkpoints}"
    )


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a child process: with the path of this project, without SCORER_ variables."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SCORER_")}
    path = os.pathsep.join(filter(None, [str(ROOT / "python"), inherited.get("PYTHONPATH")]))
    return {**inherited, "PYTHONPATH": path, **more}


def scorer(
    *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one ``scorer`` command until it exits."""
    return subprocess.run(
        [sys.executable, "-m", "scorer.cli", *arguments],
        cwd=cwd,
        env=environment(**(env or {})),
        capture_output=True,
        text=True,
        timeout=PATIENCE * 2,
        check=False,
    )


def open_channel(address: str) -> grpc.Channel:
    """Open a channel to ``host:port`` or ``unix:/path``."""
    # gRPC's C core would send the socket's path, percent-encoded, as the authority, which HTTP/2 forbids.
    options = [("grpc.default_authority", "localhost")] if address.startswith("unix:") else []
    return grpc.insecure_channel(address, options=options)


@dataclass(frozen=True)
class Outcome:
    """The exit code and the output of a command."""

    returncode: int
    stdout: str
    stderr: str


def scorer_in_process(*arguments: str) -> Outcome:
    """Run a command as `scorer` does, but in this process, which saves a second per command."""
    from scorer import cli

    out, err = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["scorer", *arguments]
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    finally:
        sys.argv = before
    return Outcome(code, out.getvalue(), err.getvalue())


class RunningServer:
    """A server process. A thread reads its events as they arrive."""

    def __init__(
        self,
        directory: Path,
        *,
        env: Mapping[str, str] | None = None,
        more: Sequence[str] = (),
        command: Sequence[str] | None = None,
    ) -> None:
        self.directory = directory
        self.events: list[dict[str, Any]] = []
        self.noise: list[str] = []
        """Lines on stderr that are not events. There should be none."""
        self._seen: dict[str, int] = {}
        self._open = ExitStack()
        self.process = subprocess.Popen(
            command
            or [
                sys.executable,
                "-m",
                "scorer.cli",
                "serve",
                "--config",
                str(directory / "scorer.toml"),
                *more,
            ],
            cwd=directory,
            env=environment(**(env or {})),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    # --- events ---

    def event(self, name: str, *, seconds: float = PATIENCE, **fields: Any) -> dict[str, Any]:
        """Wait for the next event of this name (and with these fields) that was not returned before."""

        def find() -> dict[str, Any] | None:
            for index in range(self._seen.get(name, 0), len(self.events)):
                event = self.events[index]
                if event["event"] == name and all(event.get(key) == value for key, value in fields.items()):
                    self._seen[name] = index + 1
                    return event
            assert self.process.poll() is None or self._reader.is_alive(), self.transcript()
            return None

        try:
            return wait_until(find, f'event "{name}" {fields or ""}', seconds=seconds) or {}
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.transcript()}") from error.__cause__

    def transcript(self) -> str:
        """Return the exit code and all lines of stderr, for the message of a failed test."""
        lines = [json.dumps(event) for event in self.events]
        return f"exit code {self.process.poll()}\n" + "\n".join([*lines, *self.noise])

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return every event of this name so far."""
        return [event for event in self.events if event["event"] == name]

    @property
    def serving(self) -> dict[str, Any]:
        """The newest event `serving`."""
        return self.named("serving")[-1]

    @property
    def address(self) -> str:
        """Address at which the data plane listens on TCP."""
        return str(next(a for a in self.serving["grpc"] if not a.startswith("unix:")))

    @property
    def control(self) -> str:
        """Address at which the control service listens."""
        return str(self.serving["control"])

    # --- calls and commands ---

    def channel(self) -> grpc.Channel:
        """Open a channel to the data plane, which is closed together with the server."""
        return self._open.enter_context(open_channel(self.address))

    def cli(self, *arguments: str) -> Outcome:
        """Run a ``scorer`` command against this server's control service."""
        return scorer_in_process(*arguments, "--address", self.control)

    def status(self) -> dict[str, Any]:
        """Return the output of ``scorer status --json``."""
        done = self.cli("status", "--json")
        assert done.returncode == 0, done.stderr
        status: dict[str, Any] = json.loads(done.stdout)
        return status

    # --- shutdown ---

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, SIGTERM by default, and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        """Kill the process, as in a crash."""
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        """Wait until the process has ended and its output was read; return the exit code."""
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the server did not exit\n{self.transcript()}") from None
        self._reader.join(PATIENCE)
        return code

    def close(self) -> None:
        """Kill the process if it still runs, and close all channels and pipes."""
        self._open.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        if self.process.stderr:
            self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                self.events.append(json.loads(line))
            except ValueError:
                self.noise.append(line.decode(errors="replace").rstrip())


@contextmanager
def start_server(
    directory: Path,
    text: str | None = None,
    *,
    ready: bool = True,
    env: Mapping[str, str] | None = None,
    more: Sequence[str] = (),
    command: Sequence[str] | None = None,
) -> Iterator[RunningServer]:
    """Run a server over ``directory/scorer.toml``, which is written from `text` or else from `settings()`.

    Args:
        directory: Directory of the settings, the registry, the state and the decision log.
        text: The settings; None: an existing file is used, or `settings()`.
        ready: Wait for the event ``serving``.
        env: Additional environment variables.
        more: Additional arguments of `scorer serve`.
        command: Command that replaces `scorer serve` and finally starts it by `exec`.
    """
    file = directory / "scorer.toml"
    if text is not None or not file.exists():
        file.write_text(settings() if text is None else text)
    server = RunningServer(directory, env=env, more=more, command=command)
    try:
        if ready:
            server.event("serving")
        yield server
    finally:
        server.close()
