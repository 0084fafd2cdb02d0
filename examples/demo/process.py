"""The server and the platform as child processes, and calls of `scorer` commands."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

from examples.demo.errors import DemoError


@dataclass(frozen=True)
class Addresses:
    """Addresses on which the demo's processes listen. All settings files have the same addresses.

    Attributes:
        data: host:port of the scoring service.
        control: host:port of the control service.
        metrics: host:port of the metrics page.
        pages: host:port of the platform.
    """

    data: str
    control: str
    metrics: str
    pages: str

    @staticmethod
    def free() -> Addresses:
        """Return addresses with four unused ports of the loopback interface."""
        with ExitStack() as held:
            listeners = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
            data, control, metrics, pages = (f"127.0.0.1:{one.getsockname()[1]}" for one in listeners)
        return Addresses(data, control, metrics, pages)


_START_SECONDS = 60.0
_STOP_SECONDS = 20.0


class ServingProcess:
    """A `scorer` command that serves. As a context manager it is always stopped on exit.

    Args:
        what: name of the process in error messages.
        command: words of the command, such as `("serve",)`.
        settings: the settings file.
        log: file that receives the process's events.
    """

    def __init__(self, what: str, command: tuple[str, ...], settings: Path, log: Path) -> None:
        self._what = what
        self._command = command_line(*command, "--config", str(settings))
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._serving = threading.Event()
        self._last_problem = ""
        self._announced: Mapping[str, Any] = {}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        self._reader = threading.Thread(target=self._read, name="server-events", daemon=True)
        self._reader.start()
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id."""
        return int(self._announced["pid"])

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def last_problem(self) -> str:
        """The last error or warning that the process logged."""
        return self._last_problem

    def stop(self) -> int:
        """Send SIGTERM, wait for the drain and return the exit code; SIGKILL after 20 s."""
        process = self._process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._finish_reading()
        return process.returncode

    def _finish_reading(self) -> None:
        """Wait until the last events of an ended process are read."""
        if self._reader is not None:
            self._reader.join()
        if self._process is not None and self._process.stderr is not None:
            self._process.stderr.close()

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self._serving.wait(0.02):
            if not self.running:
                self._finish_reading()
                raise DemoError(
                    f"{self._what} did not start: {self._last_problem or 'no reason given'}; see {self._log}"
                )
            if time.monotonic() > deadline:
                raise DemoError(
                    f"{self._what} was not ready after {_START_SECONDS:.0f} s:"
                    f" {self._last_problem or 'no reason given'}; see {self._log}"
                )

    def _read(self) -> None:
        """Copy events to the log file until the process ends; record the last problem and `serving`."""
        process = self._process
        if process is None or process.stderr is None:
            return
        with self._log.open("wb") as copy:
            for line in process.stderr:
                copy.write(line)
                copy.flush()
                try:
                    event = json.loads(line)
                except ValueError:
                    self._last_problem = line.decode(errors="replace").strip()
                    continue
                if event.get("event") == "serving":
                    self._announced = event
                    self._serving.set()
                elif event.get("level") in {"error", "warning"}:
                    self._last_problem = str(event.get("error") or event.get("reason") or event.get("event"))


class ServerProcess(ServingProcess):
    """`scorer serve`.

    Args:
        settings: the settings file.
        log: file that receives its events.
    """

    def __init__(self, settings: Path, log: Path) -> None:
        super().__init__("the server", ("serve",), settings, log)

    @property
    def address(self) -> str:
        """host:port of the scoring service."""
        listening = self._announced["grpc"]
        tcp = [place for place in listening if not str(place).startswith("unix:")]
        return str(tcp[0])

    @property
    def control(self) -> str:
        """host:port of the control service."""
        return str(self._announced["control"])


class PlatformProcess(ServingProcess):
    """`scorer platform serve`.

    Args:
        settings: the settings file.
        log: file that receives its events.
    """

    def __init__(self, settings: Path, log: Path) -> None:
        super().__init__("the platform", ("platform", "serve"), settings, log)

    @property
    def url(self) -> str:
        """URL of its pages."""
        return str(self._announced["url"])


def command_line(*arguments: str) -> list[str]:
    """Return the argv of a `scorer` command of this installation."""
    return [sys.executable, "-m", "scorer.cli", *arguments]


def run_command(*arguments: str) -> dict[str, Any]:
    """Run a `scorer` command with `--json` and return the object that it prints.

    Raises:
        DemoError: the command failed; the message is its last line.
    """
    done = subprocess.run(  # noqa: S603
        command_line(*arguments, "--json"),
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    try:
        # `log verify` prints its findings and exits with 1 if there are any.
        found = json.loads(done.stdout)
    except ValueError:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no reason given"]
        raise DemoError(f"scorer {' '.join(arguments)} failed: {said[-1].removeprefix('error: ')}") from None
    if not isinstance(found, dict):
        raise DemoError(f"scorer {' '.join(arguments)} printed no JSON object")
    return found


def run_quietly(*arguments: str, codes: tuple[int, ...] = (0,), env: dict[str, str] | None = None) -> str:
    """Run a `scorer` command and return what it prints on stdout.

    Args:
        arguments: words after `scorer`.
        codes: exit codes that count as success.
        env: the process's environment; default: `environment()`.

    Raises:
        DemoError: the command failed; the message is its last line.
    """
    done = subprocess.run(  # noqa: S603
        command_line(*arguments), capture_output=True, text=True, check=False, env=env or environment()
    )
    if done.returncode not in codes:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no reason given"]
        raise DemoError(f"scorer {' '.join(arguments)} failed: {said[-1].removeprefix('error: ')}")
    return done.stdout


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment plus `more`, without `SCORER_*`, which is for other processes."""
    return {key: value for key, value in os.environ.items() if not key.startswith("SCORER_")} | more


def end_on_sigterm() -> None:
    """Let SIGTERM end this process as Ctrl-C does, so that child processes are stopped on exit."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        del frame
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
