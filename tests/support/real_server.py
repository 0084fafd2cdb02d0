"""A real server in a directory of its own, which outlives a kill. It listens on a free port of loopback."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

from waiting import PATIENCE, wait_until

_TRIES = 5
_SHOWN = 3000
"""Characters of the server's log that an error contains."""


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


class RealServer:
    """Starts a program and kills it. A subclass states how the program is started.

    Args:
        name: Its name, for messages.
        log: Name of its log in the directory.
        seconds: Bound on a start.
    """

    def __init__(self, name: str, log: str, *, seconds: float = PATIENCE) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"scorer-{name}-"))
        self.port = 0
        self._name, self._log, self._seconds = name, self.directory / log, seconds
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            # Another process can take the port before the program does.
            for _ in range(_TRIES):
                self._prepare()
                if self._started():
                    return self
            raise RuntimeError(f"{self._name} does not start:\n{self._text()[-_SHOWN:]}")
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def start(self) -> None:
        """After `kill`, on the same port and directory."""
        if not self._started():
            raise RuntimeError(f"{self._name} does not start again:\n{self._text()[-_SHOWN:]}")

    def _prepare(self) -> None:
        """Choose a port before a first start."""
        self.port = free_port()

    def _spawn(self) -> subprocess.Popen[bytes]:
        """Start the program."""
        raise NotImplementedError

    def _is_up(self, offset: int) -> bool:
        """Return whether it listens. `offset` is the length of its log before this start."""
        raise NotImplementedError

    def _started(self) -> bool:
        offset = len(self._text())
        self._process = process = self._spawn()
        wait_until(
            lambda: process.poll() is not None or self._is_up(offset), self._name, seconds=self._seconds
        )
        if process.poll() is None:
            return True
        self._process = None
        return False

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def _text(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""
