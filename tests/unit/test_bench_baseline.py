"""Tests of `make bench-quick`: it fails for slower code, and not for a machine that is busy for a moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtests import baseline, quick
from loadtests.baseline import Outcome
from loadtests.figures import Figure, Figures
from loadtests.options import Group, Options

MACHINE: dict[str, Any] = {"cpu": "one", "isa": "avx2", "build_profile": "release", "caches": {}}
KEPT: dict[str, Any] = {"one": {"isa": "avx2", "figures": {"row | XGBoost": 40.0, "masks": 1.0}}}
ROW = Figure(group="engine", name="row", ours=5, unit="µs", peer="XGBoost", theirs=200, ratio=40, rounds=9)
MASKS = Figure(group="engine", name="masks", ours=1.0, unit="×", rounds=9)
GROUP = Group("engine", "", quick=True)


def slower(figure: Figure, factor: float) -> Figure:
    """Return the figure with our side slower by this factor."""
    return replace(figure, ours=figure.ours * factor, ratio=figure.ratio and figure.ratio / factor)


def outcomes(
    figures: Iterable[Figure], machine: dict[str, Any] = MACHINE, group: str = "engine"
) -> list[Outcome]:
    measured = baseline.medians(figures)
    groups = dict.fromkeys(measured, group)
    return [result.outcome for result in baseline.judge(measured, KEPT, machine, groups)]


@pytest.mark.parametrize(
    ("group", "factor", "outcome"),
    [
        ("engine", 1.2, "held"),
        ("engine", 1.3, "REGRESSED"),
        ("wire", 1.5, "held"),
        ("wire", 1.6, "REGRESSED"),
    ],
)
def test_each_group_has_its_tolerance(group: str, factor: float, outcome: str) -> None:
    assert outcomes([slower(ROW, factor), slower(MASKS, factor)], group=group) == [outcome, outcome]


def test_the_median_of_all_measurements_counts() -> None:
    assert outcomes([slower(ROW, 3), ROW, slower(ROW, 1.1), MASKS]) == [Outcome.HELD, Outcome.HELD]
    assert outcomes([slower(ROW, 3), ROW, slower(ROW, 2), MASKS]) == [Outcome.REGRESSED, Outcome.HELD]


def test_a_missing_figure_is_reported_and_a_new_one_is_not_compared() -> None:
    assert outcomes([ROW, replace(MASKS, name="other")]) == [Outcome.HELD, Outcome.MISSING, Outcome.NEW]


def test_only_ratios_are_compared() -> None:
    assert baseline.worth(replace(MASKS, unit="ms")) is None
    assert baseline.worth(replace(ROW, plot="trees", x=1)) is None
    assert baseline.worth(replace(MASKS, ours=4)) == 0.25
    assert baseline.worth(replace(MASKS, ours=4, higher_is_better=True)) == 4


def test_a_count_that_misses_its_target_is_broken_on_any_machine() -> None:
    wrong = Figure(group="swaps", name="wrong answers", ours=3, unit="", target=0, met=False)
    assert baseline.broken_counts([ROW, wrong, replace(wrong, ours=0, met=True)]) == ["wrong answers"]


def test_the_tolerance_is_wider_the_less_a_machine_resembles_the_baselines() -> None:
    assert baseline.choose(KEPT, MACHINE) == ("one", 0.0)
    other = MACHINE | {"cpu": "another"}
    assert outcomes([slower(ROW, 1.7), MASKS], other) == [Outcome.HELD, Outcome.HELD]
    assert outcomes([slower(ROW, 1.9), MASKS], other) == [Outcome.REGRESSED, Outcome.HELD]
    unlike = other | {"isa": "neon"}
    assert outcomes([slower(ROW, 4), MASKS], unlike) == [Outcome.HELD, Outcome.HELD]
    assert outcomes([slower(ROW, 5), MASKS], unlike) == [Outcome.REGRESSED, Outcome.HELD]
    assert baseline.choose({}, MACHINE)[0] is None


def test_a_baseline_is_the_median_of_its_runs(tmp_path: Path) -> None:
    machine = MACHINE | {"cpu": "new", "isa": "neon"}
    kept = baseline.updated(KEPT, machine, [{"a": 3.0}, {"a": 1.0}, {"a": 2.0}])
    baseline.save(kept, tmp_path / "b.json")
    assert baseline.load(tmp_path / "b.json") == KEPT | {"new": {"isa": "neon", "figures": {"a": 2.0}}}
    assert baseline.load(tmp_path / "none.json") == {}


def test_the_stored_baseline_names_processors() -> None:
    for name, kept in baseline.load().items():
        assert kept["isa"] in {"avx512", "avx2", "neon", "portable"}, name
        assert kept["figures"]


def test_options_select_figures_by_name_or_by_part() -> None:
    some = Options(only=frozenset({"500×6, 1 row | XGBoost"}))
    assert some.wants("500×6, 1 row | XGBoost")
    assert not some.wants("500×6, 1 row | other")
    assert some.wants_any("500×6")
    assert not some.wants_any("oracle")
    assert Options().wants_any("oracle")
    assert Options().wants("anything")


class Machine:
    """A simulated machine on which each measurement takes a given factor longer than the baseline."""

    def __init__(self, factors: list[float]) -> None:
        self.factors = factors
        self.measured: list[frozenset[str]] = []

    def measure(self, group: Group, path: Path, options: Options) -> bool:
        factor = self.factors[min(len(self.measured), len(self.factors) - 1)]
        self.measured.append(options.only)
        figures = Figures.reopen(path, group.name)
        for figure in (slower(ROW, factor), MASKS):
            if options.wants(figure.key):
                figures.add(
                    name=figure.name,
                    ours=figure.ours,
                    unit=figure.unit,
                    peer=figure.peer,
                    theirs=figure.theirs,
                    command="make bench-quick",
                )
        return True


def check(factors: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[int, Machine]:
    machine = Machine(factors)
    monkeypatch.setattr(quick, "measure", machine.measure)
    monkeypatch.setattr(quick, "groups", lambda: {"engine": GROUP})
    monkeypatch.setattr(quick, "Figures", lambda directory, **_: Figures(tmp_path, machine=MACHINE))
    monkeypatch.setattr(baseline, "load", lambda: KEPT)
    return quick._check([GROUP]), machine


def test_a_short_disturbance_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, machine = check([1.6, 1.0, 1.1], monkeypatch, tmp_path)
    assert code == 0
    assert machine.measured == [frozenset(), {"row | XGBoost"}, {"row | XGBoost"}]


def test_a_regression_does_not_pass_by_one_good_measurement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, machine = check([1.4, 1.9, 1.0], monkeypatch, tmp_path)
    assert code == 1
    assert len(machine.measured) == 1 + quick.AGAIN
    out, err = capsys.readouterr()
    assert "REGRESSED" in out
    assert "row | XGBoost" in err
    assert "make bench-baseline" in err
