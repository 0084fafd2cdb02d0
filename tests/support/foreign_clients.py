"""Runs the example programs of the clients for Go, Java and Node, which `make foreign-clients` builds.

::

    with CheckoutProgram("go", [server.address], timeout_ms=20_000) as program:
        answer = program.ask("score fraud.checkout 4711 1 amount=12.5")     # {"step": "score", "score": ..}
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import components
from waiting import PATIENCE

COMPONENTS: Final[Mapping[str, str]] = {
    "go": "client for Go",
    "java": "client for Java",
    "node": "client for Node",
}
"""The component of each language."""


def _command(language: str) -> list[str]:
    built = components.BUILD / f"clients-{language}"
    if language == "go":
        return [str(built / "checkout")]
    if language == "node":
        return ["node", str(built / "checkout.js")]
    return [
        "java",
        "-XX:TieredStopAtLevel=1",  # these programs run for a second
        "-XX:+UseSerialGC",
        "-cp",
        f"{built / 'target' / 'classes'}:{built / 'target' / 'lib'}/*",
        "scorer.client.Checkout",
    ]


class CheckoutProgram:
    """A running example program, which reads steps of payments and prints their answers.

    Args:
        language: A key of `COMPONENTS`.
        addresses: The replicas.
        options: Options of the program, with underscores in place of hyphens.
    """

    def __init__(self, language: str, addresses: Sequence[str], **options: str | int | Path) -> None:
        components.require(COMPONENTS[language])
        settings = {"addresses": ",".join(addresses), **options}
        self._process = subprocess.Popen(
            [
                *_command(language),
                *(f"--{name.replace('_', '-')}={value}" for name, value in settings.items()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PROTOS": str(components.ROOT / "protos")},
        )
        self._answers: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
        self._noise: list[str] = []
        self._threads = [
            threading.Thread(target=read, daemon=True) for read in (self._read_answers, self._read_noise)
        ]
        for thread in self._threads:
            thread.start()

    def write(self, lines: Iterable[str]) -> None:
        """Pass steps to the program."""
        assert self._process.stdin is not None
        for line in lines:
            self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def read(self) -> dict[str, str]:
        """Return the next answer by field; with `concurrency`, answers come in any order."""
        try:
            return self._answers.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(f"no answer within {PATIENCE} s\n{self._story()}") from None

    def ask(self, line: str) -> dict[str, str]:
        """Return the answer to one step."""
        self.write([line])
        return self.read()

    def close(self) -> None:
        """End the input, and wait until the program has ended without an error."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(PATIENCE)
        for thread in self._threads:
            thread.join(PATIENCE)
        assert code == 0, self._story()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self._process.kill()
            self._process.wait(PATIENCE)
            for thread in self._threads:
                thread.join(PATIENCE)
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            fields = [field.partition("=") for field in line.rstrip("\n").split("\t")]
            self._answers.put({name: value for name, _, value in fields})

    def _read_noise(self) -> None:
        assert self._process.stderr is not None
        self._noise.extend(self._process.stderr)

    def _story(self) -> str:
        return f"exit code {self._process.poll()}\n{''.join(self._noise)}"
