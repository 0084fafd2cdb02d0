"""Tests of learning in many worlds: ratios with intervals, and the same payments for every solution."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from examples.loop import vowpal, worlds
from examples.loop.__main__ import app
from examples.loop.worlds import LINEAR, OURS, PLAIN, RULES, VW, Measured, ratios
from examples.simulators.worlds import OWN


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
    measured = worlds.measure(OWN, weeks=3, per_week=1_500, seed=1, with_vw=vowpal.is_installed())
    regret = {one.solution: one.regret for one in measured}
    assert set(regret) >= {OURS, PLAIN, LINEAR, RULES}
    assert (VW in regret) == vowpal.is_installed()
    assert all(len(values) == 2 for values in regret.values())
    # A uniform choice has a regret of .14 in this world.
    assert all(0 < np.mean(values) < 0.13 for values in regret.values())
    assert np.mean(regret[LINEAR]) < np.mean(regret[RULES])
    assert np.mean(regret[OURS]) < np.mean(regret[RULES])


def test_the_command_writes_its_result_and_names_omitted_solutions(tmp_path, monkeypatch):
    def fixed(spec, weeks, per_week, seed, *, with_vw):
        del weeks, per_week, seed
        names = (OURS, LINEAR, *((VW,) if with_vw else ()))
        return [Measured(spec.name, name, (0.02 + 0.01 * place,)) for place, name in enumerate(names)]

    def in_this_process(specs, weeks, per_week, seed, jobs, advance):
        del jobs
        for spec in specs:
            advance(spec.name)
        return [one for spec in specs for one in fixed(spec, weeks, per_week, seed, with_vw=False)]

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
    assert len(written["regret"]) == 6
    assert written["ratios"][0]["peer"] == LINEAR
