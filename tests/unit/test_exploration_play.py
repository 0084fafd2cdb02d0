"""Tests of the protocols that evaluate exploration rules: batches, chance, regret, sensitivity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtests.learning.exploration import datasets, weekly
from loadtests.learning.exploration.compared import Compared, paired_interval
from loadtests.learning.exploration.ours import OURS
from loadtests.learning.exploration.peers import greedy, uniform
from loadtests.learning.exploration.play import drawn, generations, play, recipe
from loadtests.learning.exploration.view import Rule, View

UNIFORM = Rule("uniform", "reference", uniform)
GREEDY = Rule("greedy", "reference", greedy)


def easy(rows: int = 400) -> datasets.Classes:
    """Return rows of three classes that one column separates."""
    rng = np.random.default_rng(5)
    label = rng.integers(0, 3, rows)
    x = np.column_stack([label + rng.normal(0, 0.1, rows), rng.normal(size=rows)])
    return datasets.Classes("easy", x.astype(np.float32), label)


@pytest.mark.parametrize("n", [40, 51, 300, 1797, 5000])
def test_generations_cover_every_row_once_and_double_in_size(n: int) -> None:
    parts = generations(n)
    assert [low for low, _ in parts] == [50, *(high for _, high in parts)][: len(parts)]
    assert (parts[-1][1] if parts else n) == n
    assert all(high == 2 * low for low, high in parts[:-1])
    # A remainder of less than a tenth is added to the last generation.
    assert all(high <= 2 * low / 0.9 for low, high in parts)


def test_draws_invert_the_cumulative_sum() -> None:
    pmf = np.array([[0.2, 0.0, 0.8]] * 4)
    np.testing.assert_array_equal(drawn(pmf, np.array([0.0, 0.1999, 0.2001, 0.9999])), [0, 0, 2, 2])
    luck = np.random.default_rng(1).random(20_000)
    shares = np.bincount(drawn(np.tile(pmf[:1], (20_000, 1)), luck), minlength=3) / 20_000
    np.testing.assert_allclose(shares, pmf[0], atol=0.01)


def test_regret_is_expected_regret() -> None:
    assert play(easy(), UNIFORM, 1).regret == pytest.approx(2 / 3)
    learned = play(easy(), GREEDY, 1)
    assert learned.regret < 0.3
    assert learned.last <= learned.regret
    # The draws depend only on the seed.
    assert play(easy(), GREEDY, 1) == learned
    seeds = {play(easy(), OURS, seed).regret for seed in (1, 2)}
    assert len(seeds) == 2


def test_probabilities_that_are_no_distribution_are_refused() -> None:
    broken = Rule("half", "reference", lambda view: uniform(view) / 2)
    with pytest.raises(ValueError, match="half gives no distribution"):
        play(easy(120), broken, 1)


def test_rules_get_only_their_own_log() -> None:
    seen: list[Any] = []

    def watch(view: View) -> Any:
        seen.append((view.learned, int(view.counts.sum()), view.members(2).shape, view.sensitivity().shape))
        assert 0 < view.excess() < 1
        return np.eye(3)[np.zeros(len(view.scores), dtype=int)]

    play(easy(300), Rule("always the first", "reference", watch), 1)
    assert [learned for learned, *_ in seen] == [50, 100, 200][: len(seen)]
    assert all(learned == counted for learned, counted, *_ in seen)
    assert seen[0][2] == (2, 50, 3)
    assert seen[0][3] == (50, 3)


def ends(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the leaves of a dumped tree."""
    below = node.get("children", [])
    return [leaf for child in below for leaf in ends(child)] if below else [node]


def test_sensitivity_is_the_sum_over_leaves() -> None:
    classes = easy(200)
    rng = np.random.default_rng(2)
    action = rng.integers(0, 3, 200)
    oracle = recipe(classes).train(classes.rows, action, (action == classes.label).astype(float), seed=1)
    rows = np.concatenate([classes.rows[:4], np.array([[1.0]] * 4)], axis=1).astype(np.float32)
    leaves = oracle.booster.predict(oracle.recipe.matrix(rows), pred_leaf=True)
    dumped = [json.loads(text) for text in oracle.booster.get_dump(dump_format="json", with_stats=True)]
    cover = {(at, node["nodeid"]): node["cover"] for at, tree in enumerate(dumped) for node in ends(tree)}
    naive = [
        sum(0.3 / (cover[tree, int(leaf)] + 1) for tree, leaf in enumerate(row_leaves))
        for row_leaves in leaves
    ]
    eligible = np.zeros((4, 3), dtype=bool)
    eligible[:, 1] = True
    sensitivity = oracle.sensitivity(classes.rows[:4], eligible)
    np.testing.assert_allclose(sensitivity[:, 1], naive, rtol=1e-5)
    assert (sensitivity[:, [0, 2]] == 0).all()


def test_the_best_peer_is_chosen_by_its_result() -> None:
    regret = {"ours": np.array([0.1, 0.3]), "a": np.array([0.2, 0.4]), "b": np.array([0.9, 0.0])}
    result = Compared.of(regret, "ours", ["a", "b"])
    assert (result.best, result.ours, result.theirs) == ("a", pytest.approx(0.2), pytest.approx(0.3))
    assert (result.low, result.high) == (pytest.approx(-0.1), pytest.approx(-0.1))
    # Against the closed form of a mean's interval.
    values = np.random.default_rng(3).normal(1.0, 2.0, 400)
    low, high = paired_interval(values)
    assert low == pytest.approx(values.mean() - 1.96 * values.std() / 20, abs=0.03)
    assert high == pytest.approx(values.mean() + 1.96 * values.std() / 20, abs=0.03)


def test_data_sets_that_are_unavailable_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "FOLDER", tmp_path / "data")
    monkeypatch.setattr(datasets.shutil, "which", lambda tool: None)
    pytest.importorskip("sklearn")
    monkeypatch.setitem(__import__("sys").modules, "rdata", object())
    sets, lost = datasets.available(("digits", "letter"))
    assert [classes.name for classes in sets] == ["digits"]
    assert sets[0].k == 10
    assert "apt-get and dpkg-deb" in lost["letter"]


def test_weeks_start_equally_and_are_evaluated_with_the_true_rewards() -> None:
    world = weekly.prepared(1000, 2, 300)
    arrivals, truth, best = world.weeks[0]
    plain = weekly.solve(world, weekly.Solution("plain", GREEDY))
    overlaid = weekly.solve(world, weekly.Solution("overlaid", GREEDY, overlay=True))
    even = weekly.solve(world, weekly.Solution("uniform", UNIFORM))
    mean = np.where(arrivals.eligible, truth, 0).sum(axis=1) / arrivals.eligible.sum(axis=1)
    assert plain[0] == overlaid[0] == even[0] == pytest.approx(float((best - mean).mean()))
    # Training on a week's log of 300 has an effect, and the overlay changes the choices.
    assert plain[1] < even[1]
    assert plain[1] != overlaid[1]
