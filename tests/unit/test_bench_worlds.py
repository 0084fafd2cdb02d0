"""Tests that regret in further worlds compares equal learners, whether the result is favourable or not."""

from __future__ import annotations

from pathlib import Path

from examples.loop.worlds import LINEAR, LINUCB, OURS, PLAIN, RULES, VW, Measured
from loadtests.figures import Figures
from loadtests.learning import worlds

MACHINE = {"cpu": "one", "isa": "avx2", "build_profile": "release", "caches": {}, "commit": "abc"}


def test_learners_are_compared_over_the_same_worlds(tmp_path: Path) -> None:
    regret = {OURS: 0.02, PLAIN: 0.04, LINEAR: 0.03, RULES: 0.05, LINUCB: 0.03, VW: 0.025}
    measured = [
        Measured(f"world-{world}", name, (value + world / 1000,) * 3)
        for world in range(3)
        for name, value in regret.items()
    ]
    figures = Figures(tmp_path, group="learning.worlds", machine=MACHINE)
    worlds.add_figures(figures, measured, ["world-1"])
    from loadtests.figures import read

    result = {(one.name.partition(", ")[2], one.peer): one for one in read(figures.path).figures}
    assert result[OURS, VW].met and result[OURS, VW].rounds == 3
    assert result[PLAIN, LINEAR].met is False, "the weekly linear model is better, and the page shows it"
    assert result[PLAIN, VW].result == "worse"
    ratio = result[OURS, VW].note or ""
    assert "0.81 [" in ratio, "(21 + 22 + 20) / (26 + 27 + 25) thousandths"
    calm = result["scorer", LINEAR]
    assert calm.name.startswith("regret")
