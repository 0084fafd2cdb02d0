"""Tests of alternating time measurements: how figures are computed, and the compared programs' commands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from loadtests.engine.race import Lap, PythonCalls, race, running

PROGRAM = """
import sys
print("{}", flush=True)
for line in sys.stdin:
    print("[0.25, 0.5]" if line == "answers\\n" else f"[{int(line.split()[1]) + 1000}, 3000]", flush=True)
"""


class Turns:
    """A competitor with known times."""

    def __init__(self, rounds: list[list[float]]) -> None:
        self.rounds = rounds
        self.taken = 0

    def turn(self) -> list[float]:
        self.taken += 1
        return self.rounds[(self.taken - 1) % len(self.rounds)]


def test_a_block_is_the_mean_over_rows_of_each_rows_median() -> None:
    # One of three rounds is disturbed. The median of each row excludes it.
    quiet, disturbed = [1000.0, 3000.0], [90_000.0, 3000.0]
    laps = race({"one": Turns([quiet, disturbed, quiet])}, seconds=0.01, blocks=1)
    assert laps["one"].blocks == [2e-6]


def test_every_competitor_has_the_same_number_of_turns() -> None:
    racers = {"a": Turns([[1.0]]), "b": Turns([[2.0]])}
    laps = race(racers, seconds=0.0, blocks=5)
    assert racers["a"].taken == racers["b"].taken == 5
    assert len(laps["a"].blocks) == len(laps["b"].blocks) == 5
    assert Lap([1.0, 3.0, 2.0]).median == 2.0


def test_calls_are_warmed_up_before_they_are_timed() -> None:
    called: list[int] = []
    calls = [lambda number=number: called.append(number) for number in range(16)]
    clock = iter(range(0, 3200, 100))
    assert PythonCalls(calls, lambda: next(clock)).turn() == [100] * 16
    assert called == [0, 1, *range(16)]


def test_a_program_is_timed_by_command(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    with running([sys.executable, file], calls=16) as program:
        assert program.answers() == [0.25, 0.5]
        assert race({"program": program}, seconds=0.0, blocks=2)["program"].blocks == [2.001e-6, 2.001e-6]
    file.write_text("print('{}', flush=True)")
    ended = pytest.raises(RuntimeError, match="ended with exit code 0")
    with running([sys.executable, file], calls=16) as program, ended:
        program.turn()
