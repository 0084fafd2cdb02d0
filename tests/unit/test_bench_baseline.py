"""`make bench-quick`: slower code is red, a busy moment is not."""

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
KEPT: dict[str, Any] = {"avx2": {"cpu": "one", "figures": {"row | XGBoost": 40.0, "masks": 1.0}}}
ROW = Figure(group="engine", name="row", ours=5, unit="µs", peer="XGBoost", theirs=200, ratio=40)
MASKS = Figure(group="engine", name="masks", ours=1.0, unit="×")
GROUP = Group("engine", "", quick=True)


def slower(figure: Figure, factor: float) -> Figure:
    """The figure, were our side slower by this factor."""
    return replace(figure, ours=figure.ours * factor, ratio=figure.ratio and figure.ratio / factor)


def outcomes(figures: Iterable[Figure], machine: dict[str, Any] = MACHINE) -> list[Outcome]:
    return [found.outcome for found in baseline.judge(baseline.best(figures), KEPT, machine)]


@pytest.mark.parametrize(("factor", "outcome"), [(0.5, "held"), (1.3, "held"), (1.4, "REGRESSED")])
def test_a_quarter_may_be_lost(factor: float, outcome: str) -> None:
    assert outcomes([slower(ROW, factor), slower(MASKS, factor)]) == [outcome, outcome]


def test_the_best_measurement_counts() -> None:
    assert outcomes([slower(ROW, 3), ROW, slower(ROW, 2), MASKS]) == [Outcome.HELD, Outcome.HELD]


def test_a_figure_that_is_gone_is_told_and_a_new_one_is_not_judged() -> None:
    assert outcomes([ROW, replace(MASKS, name="other")]) == [Outcome.HELD, Outcome.MISSING, Outcome.NEW]


def test_only_ratios_are_compared() -> None:
    assert baseline.worth(replace(MASKS, unit="ms")) is None
    assert baseline.worth(replace(ROW, plot="trees", x=1)) is None
    assert baseline.worth(replace(MASKS, ours=4)) == 0.25
    assert baseline.worth(replace(MASKS, ours=4, higher_is_better=True)) == 4


def test_another_processor_may_lose_half() -> None:
    other = MACHINE | {"cpu": "another"}
    assert outcomes([slower(ROW, 1.9), MASKS], other) == [Outcome.HELD, Outcome.HELD]
    assert outcomes([slower(ROW, 2.1), MASKS], other) == [Outcome.REGRESSED, Outcome.HELD]
    assert outcomes([slower(ROW, 9)], MACHINE | {"isa": "neon"}) == [Outcome.NEW]


def test_a_baseline_is_the_middle_of_its_runs(tmp_path: Path) -> None:
    kept = baseline.updated(KEPT, MACHINE | {"isa": "neon"}, [{"a": 3.0}, {"a": 1.0}, {"a": 2.0}])
    baseline.save(kept, tmp_path / "b.json")
    assert baseline.load(tmp_path / "b.json") == KEPT | {"neon": {"cpu": "one", "figures": {"a": 2.0}}}
    assert baseline.load(tmp_path / "none.json") == {}


def test_what_is_wanted_again() -> None:
    some = Options(only=frozenset({"500×6, 1 row | XGBoost"}))
    assert some.wants("500×6, 1 row | XGBoost")
    assert not some.wants("500×6, 1 row | other")
    assert some.wants_any("500×6")
    assert not some.wants_any("oracle")
    assert Options().wants_any("oracle")
    assert Options().wants("anything")


class Machine:
    """Stands for a machine on which each measurement takes some factor longer than the baseline."""

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
    monkeypatch.setattr(quick, "Figures", lambda directory, **_: Figures(tmp_path, machine=MACHINE))
    monkeypatch.setattr(baseline, "load", lambda: KEPT)
    return quick._check([GROUP]), machine


def test_what_looks_regressed_once_is_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, machine = check([1.6, 1.5, 1.1], monkeypatch, tmp_path)
    assert code == 0
    assert machine.measured == [frozenset(), {"row | XGBoost"}, {"row | XGBoost"}]


def test_code_that_is_slower_by_two_fifths_stays_red(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, machine = check([1.4, 1.9, 1.4], monkeypatch, tmp_path)
    assert code == 1
    assert len(machine.measured) == 1 + quick.AGAIN
    out, err = capsys.readouterr()
    assert "REGRESSED" in out
    assert "row | XGBoost" in out
    assert "make bench-baseline" in err
