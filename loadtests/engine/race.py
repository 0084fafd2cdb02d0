"""Time calls in turns, so that a change of the machine's load affects all racers alike."""

from __future__ import annotations

import gc
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, Protocol

Call = Callable[[], object]
# Number of blocks into which rounds are grouped. A figure has one value per block.
BLOCKS: Final = 9


class Racer(Protocol):
    """A set of calls that are timed."""

    def turn(self) -> Sequence[float]:
        """Make some untimed calls, then every call once, and return nanoseconds for each call."""
        ...


@dataclass(frozen=True)
class PythonCalls:
    """Calls made in this process.

    Attributes:
        calls: One per row, or per block of rows.
        clock: Clock in nanoseconds; `time.process_time_ns` for calls during which the process may be
        preempted.
    """

    calls: Sequence[Call]
    clock: Callable[[], int] = time.perf_counter_ns

    def turn(self) -> list[float]:
        """Make an eighth of the calls untimed, then every call once, and return nanoseconds for each."""
        for call in self.calls[: _warm(len(self.calls))]:
            call()
        return [self._timed(call) for call in self.calls]

    def _timed(self, call: Call) -> float:
        started = self.clock()
        call()
        return self.clock() - started


class Program:
    """A program that makes calls on command. `programs/turns.h` describes the commands."""

    def __init__(self, process: subprocess.Popen[str], calls: int) -> None:
        self._process = process
        self._calls = calls
        self.about: dict[str, Any] = self._line()

    def turn(self) -> list[float]:
        """Let the program make an eighth of the calls untimed, then every call once."""
        return self._asked(f"turn {_warm(self._calls)}")

    def answers(self) -> list[float]:
        """Return the probability of every row."""
        return self._asked("answers")

    def _asked(self, command: str) -> list[float]:
        assert self._process.stdin is not None
        # If the program has ended, the missing reply raises an error with its exit code.
        with suppress(BrokenPipeError):
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        found: list[float] = self._line()
        return found

    def _line(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended with exit code {self._process.wait(10)}")
        return json.loads(line)


@contextmanager
def running(command: Sequence[str | Path], calls: int) -> Iterator[Program]:
    """Run a program for a race and end it with the context.

    Args:
        command: The program and its arguments.
        calls: Number of calls per turn.
    """
    process = subprocess.Popen(
        [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Program(process, calls)
    finally:
        process.kill()
        process.wait(10)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):  # closing flushes, which fails if the program has ended
                    stream.close()


@dataclass(frozen=True)
class Lap:
    """The time per call of one racer.

    Attributes:
        blocks: Seconds per call in each block of rounds. The value of a block is the mean over the calls of
        each
            call's median over the rounds of the block.
    """

    blocks: Sequence[float]

    @property
    def median(self) -> float:
        """Seconds per call, the median over the blocks."""
        return median(self.blocks)

    def scaled(self, factor: float) -> list[float]:
        """Return the values of the blocks, multiplied by a factor."""
        return [value * factor for value in self.blocks]


def race(racers: Mapping[str, Racer], *, seconds: float = 3.0, blocks: int = BLOCKS) -> dict[str, Lap]:
    """Time the calls of all racers in rounds. In each round every racer has one turn.

    The untimed calls at the beginning of a turn load the racer's code and data into the caches again.

    Args:
        racers: The racers by name.
        seconds: Time for all rounds, seconds. Each block has at least one round, even if that takes longer.
        blocks: Number of values of each figure.

    Returns:
        Seconds per call, by racer.
    """
    times: dict[str, list[list[float]]] = {name: [] for name in racers}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        end = time.perf_counter() + seconds
        rounds = 0
        while rounds < blocks or time.perf_counter() < end:
            for name, racer in racers.items():
                times[name].append(list(racer.turn()))
            rounds += 1
    finally:
        if collecting:
            gc.enable()
    return {name: _lap(rounds, blocks) for name, rounds in times.items()}


def _warm(calls: int) -> int:
    return calls // 8


def _lap(rounds: list[list[float]], blocks: int) -> Lap:
    edges = [round(number * len(rounds) / blocks) for number in range(blocks + 1)]
    parts = [rounds[begin:end] for begin, end in pairwise(edges)]
    return Lap([_per_call(part) / 1e9 for part in parts])


def _per_call(rounds: list[list[float]]) -> float:
    """Return the mean over the calls of each call's median over the rounds."""
    columns = [median(column) for column in zip(*rounds, strict=True)]
    return sum(columns) / len(columns)
