"""Tests of learning in many worlds: ratios with intervals, and the same payments for every solution."""

from __future__ import annotations

import json
from concurrent.futures import Future

import numpy as np
import pytest
from typer.testing import CliRunner

from examples.loop import vowpal, worlds
from examples.loop.__main__ import app
from examples.loop.worlds import (
    FRESH,
    LINEAR,
    OURS,
    PLAIN,
    RULES,
    VW,
    Measured,
    Play,
    ratios,
)
from examples.simulators.worlds import OWN, drawn
from scorer.learn.errors import DataError


def figures(**regret: list[float]) -> list[Measured]:
    return [
        Measured(f"w{number}", name, (value, value))
        for name, values in regret.items()
        for number, value in enumerate(values)
    ]


def test_ratios_compare_means_over_paired_worlds():
    measured = figures(ours=[0.01, 0.02, 0.03], double=[0.02, 0.04, 0.06], mixed=[0.02, 0.01, 0.03])
    double, mixed = ratios(measured, "ours")
    # The regret is halved in every world, so the paired ratio has no spread.
    assert (double.value, double.low, double.high) == pytest.approx((0.5, 0.5, 0.5))
    assert (double.less_in, double.worlds) == (3, 3)
    assert mixed.value == pytest.approx(1.0)
    assert mixed.low < 0.7 < 1.4 < mixed.high
    assert mixed.less_in == 1
    assert ratios(measured, "ours") == ratios(measured, "ours")


def test_every_solution_runs_in_a_world_and_improves():
    # FRESH has the code of OURS, with another start of the overlay.
    names = [name for name in worlds.makers(with_vw=vowpal.is_installed()) if name != FRESH]
    measured = worlds.measure(OWN, Play(3, 1_500), names)
    regret = {one.solution: one.regret for one in measured}
    assert set(regret) >= {OURS, PLAIN, LINEAR, RULES}
    assert (VW in regret) == vowpal.is_installed()
    assert all(len(values) == 2 for values in regret.values())
    # A uniform choice has a regret of .14 in this world.
    assert all(0 < np.mean(values) < 0.13 for values in regret.values())
    assert np.mean(regret[LINEAR]) < np.mean(regret[RULES])
    assert np.mean(regret[OURS]) < np.mean(regret[RULES])


def test_the_command_writes_its_result_and_names_omitted_solutions(tmp_path, monkeypatch):
    def in_this_process(specs, play, jobs, names, lines, advance):
        assert (play, jobs, list(names) in ([], [OURS]), lines) == (Play(2), 1, True, None)
        for spec in specs:
            advance(spec.name)
        return [
            Measured(spec.name, name, (0.02 + 0.01 * place,))
            for spec in specs
            for place, name in enumerate((OURS, LINEAR))
        ]

    monkeypatch.setattr(worlds, "measure_all", in_this_process)
    monkeypatch.setattr(vowpal, "is_installed", lambda: False)
    file = tmp_path / "worlds.json"
    done = CliRunner().invoke(app, ["worlds", "--output", str(file), "--worlds", "3", "--weeks", "2"])
    assert done.exit_code == 0, done.output
    assert f"{OURS} / {LINEAR}: 0.67 [0.67, 0.67], less regret in 3 of 3 worlds" in done.output
    assert "skipped: Vowpal Wabbit, online: the package vowpalwabbit is not installed" in done.output
    written = json.loads(file.read_text())
    assert [one["name"] for one in written["worlds"]] == ["own", "other-1", "other-2"]
    assert written["settings"]["weeks"] == 2
    assert written["settings"]["structure"] == "standard"
    assert len(written["regret"]) == 6
    assert written["ratios"][0]["peer"] == LINEAR
    chosen = CliRunner().invoke(app, ["worlds", "--output", str(file), "--weeks", "2", "--solution", OURS])
    assert chosen.exit_code == 0, chosen.output
    assert "skipped" not in chosen.output
    assert json.loads(file.read_text())["skipped"] == []


class Played:
    """Stands in for the process pool: records what is played, and can stop after some worlds."""

    def __init__(self, stops_after: int = 1_000) -> None:
        self.calls: list[tuple[str, list[str]]] = []
        self._left = stops_after

    def __call__(self, jobs: int) -> Played:
        return self

    def __enter__(self) -> Played:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def submit(self, _measure, spec, play, names):
        done = Future()
        self._left -= 1
        if self._left < 0:
            done.set_exception(KeyboardInterrupt())
            return done
        self.calls.append((spec.name, list(names)))
        done.set_result([Measured(spec.name, name, (0.01 * len(name), play.seed / 100)) for name in names])
        return done


def test_an_interrupted_measurement_continues_from_its_lines(tmp_path, monkeypatch):
    specs, play, lines = drawn(3, 20_000), Play(weeks=3), tmp_path / "lines.jsonl"
    names = [OURS, LINEAR]
    monkeypatch.setattr(worlds, "as_completed", list)

    def play_with(pool: Played, play: Play = play, names: list[str] = names) -> list[Measured]:
        monkeypatch.setattr(worlds, "ProcessPoolExecutor", pool)
        return worlds.measure_all(specs, play, 1, names, lines)

    stopped, rest, again, other = Played(2), Played(), Played(), Played()
    with pytest.raises(KeyboardInterrupt):
        play_with(stopped)
    with lines.open("a") as file:
        file.write('{"world": {"na')  # The process was killed while it wrote.
    measured = play_with(rest)
    assert rest.calls == [(specs[2].name, names)]
    assert [(one.world, one.solution) for one in measured] == [
        (s.name, name) for s in specs for name in names
    ]
    assert measured == play_with(again)
    assert again.calls == []
    # Another solution is added, other traffic is measured anew, and neither changes the lines before it.
    play_with(other, names=[OURS, RULES, LINEAR])
    assert other.calls == [(spec.name, [RULES]) for spec in specs]
    play_with(elsewhere := Played(), Play(weeks=3, seed=2))
    assert len(elsewhere.calls) == 3
    assert play_with(again) == measured
    assert again.calls == []


def test_lines_of_something_else_and_unknown_solutions_are_rejected(tmp_path, monkeypatch):
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"world": {"name": "a", "colour": 3}}\n')
    with pytest.raises(DataError, match="line 1 is not a result of this command; remove the line"):
        worlds.measure_all([OWN], Play(), 1, [OURS], lines)
    lines.write_bytes(b"\xff\n")
    with pytest.raises(DataError, match="cannot be used"):
        worlds.read_lines(lines, Play())
    with pytest.raises(DataError, match=r"cannot be used.*give another file"):
        worlds.read_lines(tmp_path / "no/such/lines.jsonl", Play())
    with pytest.raises(DataError, match='solution "best" is unknown; one of "scorer", '):
        worlds.measure_all([OWN], Play(), 1, ["best"])
    monkeypatch.setattr(vowpal, "is_installed", lambda: False)
    with pytest.raises(DataError, match="vowpalwabbit is not installed; install it"):
        worlds.measure_all([OWN], Play(), 1, [VW])
