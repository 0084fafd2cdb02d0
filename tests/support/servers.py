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

# Observed, not enforced: on a busy machine nothing else that a test is about may depend on being on time.
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
    """A settings file for a test: free ports, fast polling; each section can be added to."""
    return (
        '[server]\nlisten = "127.0.0.1:0"\nmetrics_listen = "127.0.0.1:0"\ncontrol_listen = "127.0.0.1:0"\n'
        f"{server}\n[registry]\npoll_ms = 20\n{registry}\n[log]\n{log}\n{checkpoints}"
    )


def environment(**more: str) -> dict[str, str]:
    """What a child process needs to find this project; nothing of the caller's SCORER_ variables."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SCORER_")}
    path = os.pathsep.join(filter(None, [str(ROOT / "python"), inherited.get("PYTHONPATH")]))
    return {**inherited, "PYTHONPATH": path, **more}


def scorer(
    *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs one ``scorer`` command to its end."""
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
    """A channel to ``host:port`` or ``unix:/path``."""
    # gRPC's C core would send the socket's path, percent-encoded, as the authority, which HTTP/2 forbids.
    options = [("grpc.default_authority", "localhost")] if address.startswith("unix:") else []
    return grpc.insecure_channel(address, options=options)


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    returncode: int
    stdout: str
    stderr: str


def scorer_here(*arguments: str) -> Outcome:
    """As `scorer`, without the second that a new interpreter takes."""
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
    """A server process. Its events are read as they come."""

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
        """Lines on stderr that are no events: there should be none."""
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

    # --- what it says ---

    def event(self, name: str, *, seconds: float = PATIENCE, **fields: Any) -> dict[str, Any]:
        """The next event of this name (and with these fields) that was not returned before."""

        def find() -> dict[str, Any] | None:
            for index in range(self._seen.get(name, 0), len(self.events)):
                found = self.events[index]
                if found["event"] == name and all(found.get(key) == value for key, value in fields.items()):
                    self._seen[name] = index + 1
                    return found
            assert self.process.poll() is None or self._reader.is_alive(), self.story()
            return None

        try:
            return wait_until(find, f'event "{name}" {fields or ""}', seconds=seconds) or {}
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from error.__cause__

    def story(self) -> str:
        """Everything it said, for a failure's message."""
        lines = [json.dumps(event) for event in self.events]
        return f"exit code {self.process.poll()}\n" + "\n".join([*lines, *self.noise])

    def named(self, name: str) -> list[dict[str, Any]]:
        """Every event of a name so far."""
        return [event for event in self.events if event["event"] == name]

    @property
    def serving(self) -> dict[str, Any]:
        """The ready line."""
        return self.named("serving")[-1]

    @property
    def address(self) -> str:
        """Where the data plane listens on TCP."""
        return str(next(a for a in self.serving["grpc"] if not a.startswith("unix:")))

    @property
    def control(self) -> str:
        """Where the control service listens."""
        return str(self.serving["control"])

    # --- talking to it ---

    def channel(self) -> grpc.Channel:
        """A channel to the data plane; closed with the server."""
        return self._open.enter_context(open_channel(self.address))

    def cli(self, *arguments: str) -> Outcome:
        """A ``scorer`` command against this server's control service."""
        return scorer_here(*arguments, "--address", self.control)

    def status(self) -> dict[str, Any]:
        """What ``scorer status --json`` prints."""
        done = self.cli("status", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    # --- its end ---

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Asks it to stop and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        """Ends it as a crash would."""
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        """Its exit code, once it has ended and all that it said was read."""
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end\n{self.story()}") from None
        self._reader.join(PATIENCE)
        return code

    def close(self) -> None:
        """Leaves nothing behind."""
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
    """A server over ``directory/scorer.toml`` (written from `text`, or `settings()` where there is none).

    Args:
        directory: Holds the settings; registry, state and decision log are below it.
        text: The settings.
        ready: Wait for the ``serving`` event.
        env: Further environment variables.
        more: Further arguments of `scorer serve`.
        command: In place of `scorer serve`: it ends in one by `exec`.
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
