"""Counterfactuals, held against exhaustive searches of small worlds."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from bundles import CREATED
from trained import LINEAGE, Trained

from scorer.bundle import (
    Band,
    Bundle,
    Feature,
    Log1p,
    SchemaFile,
    Standardise,
    build_score_bundle,
    transform,
)
from scorer.errors import BundleError
from scorer.explain.counterfactual import ActionableFeature, find_counterfactual
from scorer.explain.grammar import read_actionable
from scorer.explain.thresholds import ForestThresholds, before, float_of, key_of

FEATURES = [
    Feature(name="a", minimum=0, maximum=9),
    Feature(name="b", minimum=0, maximum=9),
    Feature(name="c", type="category", categories=["x", "y", "z"]),
    Feature(name="d", type="flag"),
]
WHOLE = [
    ActionableFeature("a", whole=True),
    ActionableFeature("b", whole=True),
    ActionableFeature("c"),
    ActionableFeature("d"),
]


def world(path: Path, seed: int, steps: list[Log1p | Standardise] | None = None, **own: Any) -> Bundle:
    """Build a bundle whose decisions depend on several features together."""
    random = np.random.default_rng(seed)
    data = np.stack(
        [
            random.integers(0, 10, 600),
            random.integers(0, 10, 600),
            random.integers(0, 3, 600),
            random.integers(0, 2, 600),
        ],
        axis=1,
    ).astype(np.float32)
    data[random.random(600) < 0.05, 0] = np.nan
    a, b, c, d = np.nan_to_num(data).T
    risk = (a - 5) * (b - 4) / 8 + (c == seed % 3) - 0.7 * d - 0.5
    labels = (random.random(600) < 1 / (1 + np.exp(-2 * risk))).astype(np.float32)
    moved = transform(FEATURES, steps or [], data)
    names = [feature.name for feature in FEATURES]
    settings = {"max_depth": 4, "nthread": 1, "objective": "binary:logistic", "seed": seed}
    model = xgb.train(settings, xgb.DMatrix(moved, labels, feature_names=names), 12)
    build_score_bundle(
        path,
        name="small",
        model=model,
        schema=SchemaFile(features=FEATURES),
        bands=[
            Band(start=0, label="approve"),
            Band(start=0.3, label="review"),
            Band(start=0.6, label="decline"),
        ],
        training=data[:500],
        validation=data[500:],
        lineage=LINEAGE,
        golden_cases=256,
        created_at=CREATED,
        **({"steps": steps} if steps else {}),
        **own,
    )
    return Bundle.load(path)


def brute_force(bundle: Bundle, row: np.ndarray, limit: int, most: int) -> tuple[int, float] | None:
    """Return the fewest changes and their least distance, over all combinations of whole values."""
    # A missing value may stay missing.
    first = [*range(10), np.nan] if np.isnan(row[0]) else range(10)
    every = np.array(list(product(first, range(10), range(3), range(2))), np.float32)
    good = every[bundle.score(every).bands <= limit]
    changed = (good != row) & ~(np.isnan(good) & np.isnan(row))
    numbers = np.where(np.isnan(row[:2]), 1.0, np.abs(good[:, :2] - row[:2]) / 9)
    distances = np.where(changed[:, :2], numbers, 0).sum(axis=1) + changed[:, 2:].sum(axis=1)
    found = [(int(count), float(d)) for count, d in zip(changed.sum(axis=1), distances, strict=True)]
    found = [one for one in found if one[0] <= most]
    return min(found, key=lambda one: (one[0], round(one[1], 9))) if found else None


@pytest.mark.parametrize("seed", range(3))
def test_smallest_change_is_that_of_an_exhaustive_search(tmp_path: Path, seed: int) -> None:
    bundle = world(tmp_path / "small", seed)
    random = np.random.default_rng(seed)
    outcomes = set()
    for _ in range(25):
        row = np.array(
            [random.integers(0, 10), random.integers(0, 10), random.integers(0, 3), random.integers(0, 2)],
            np.float32,
        )
        if random.random() < 0.1:
            row[0] = np.nan
        most = int(random.integers(1, 4))
        label, limit = (("approve", 0), ("review", 1))[random.integers(0, 2)]
        found = find_counterfactual(tmp_path / "small", row, WHOLE, label=label, changes=most)
        assert found.exhaustive
        if bundle.score(row[None]).bands[0] <= limit:
            assert found.found is not None and found.found.changes == ()
            outcomes.add(0)
            continue
        expected = brute_force(bundle, row, limit, most)
        if expected is None:
            assert found.found is None
            assert found.words.startswith("No change of at most")
            outcomes.add(None)
            continue
        assert found.found is not None
        assert (len(found.found.changes), found.found.distance) == (expected[0], pytest.approx(expected[1]))
        outcomes.add(expected[0])
        changed = row.copy()
        for one in found.found.changes:
            changed["abcd".index(one.feature)] = one.value
        again = bundle.score(changed[None])
        assert bundle.labels[again.bands[0]] == found.found.label
        assert again.scores[0] == found.found.score
    assert {0, 1} <= outcomes


def test_no_finer_value_is_nearer(tmp_path: Path) -> None:
    bundle = world(tmp_path / "small", 1)
    grid = np.linspace(0, 9, 3001).astype(np.float32)
    tried = 0
    for a, b in product((0.5, 3.2, 8.9), (1.5, 6.1)):
        row = np.array([a, b, 1, 0], np.float32)
        found = find_counterfactual(tmp_path / "small", row, [ActionableFeature("a")], changes=1)
        rows = np.tile(row, (len(grid), 1))
        rows[:, 0] = grid
        near = np.abs(grid[bundle.score(rows).bands == 0] - row[0])
        if found.found is None:
            assert not len(near)
        elif found.found.changes:
            tried += 1
            assert found.found.distance * 9 <= near.min() + 1e-6
            assert found.found.distance * 9 >= near.min() - 9 / 3000 - 1e-6
    assert tried


def test_direction_and_range_are_kept(tmp_path: Path) -> None:
    world(tmp_path / "small", 1)
    checked = 0
    for a, b, c in product(range(10), range(10), range(3)):
        row = np.array([a, b, c, 0], np.float32)
        for one in (
            ActionableFeature("a", direction="decrease", whole=True),
            ActionableFeature("a", direction="increase"),
            ActionableFeature("a", low=2.5, high=4),
        ):
            found = find_counterfactual(tmp_path / "small", row, [one], changes=1).found
            if found is None or not found.changes:
                continue
            checked += 1
            value = found.changes[0].value
            assert (value < a) if one.direction == "decrease" else (value > a) or one.low is not None
            assert value == int(value) or not one.whole
            assert (one.low or 0) <= value <= (one.high or 9)
    assert checked > 10


def test_only_declared_levels_are_tried(tmp_path: Path) -> None:
    world(tmp_path / "small", 0)
    seen = set()
    for a, b in product(range(10), range(10)):
        row = np.array([a, b, 0, 0], np.float32)
        found = find_counterfactual(
            tmp_path / "small", row, [ActionableFeature("c", levels=("y",))], label="review"
        ).found
        seen |= {change.after for change in (found.changes if found else ())}
    assert seen == {"y"}


def declined(bundle: Bundle) -> np.ndarray:
    every = np.array(list(product(range(10), range(10), range(3), range(2))), np.float32)
    return every[bundle.score(every).bands == 2]


def test_search_that_ends_early_says_so(tmp_path: Path) -> None:
    bundle = world(tmp_path / "small", 0)
    row = declined(bundle)[0]
    far = [ActionableFeature("a", low=row[0], high=row[0] + 0.25), ActionableFeature("b", whole=True)]
    few = find_counterfactual(tmp_path / "small", row, far, evaluations=1)
    assert not few.exhaustive
    assert few.evaluations == 1
    assert "not complete" in few.words


def test_thresholds_are_where_the_forest_changes(tmp_path: Path) -> None:
    bundle = world(tmp_path / "small", 2)
    limits = ForestThresholds(tmp_path / "small").boundaries(0)
    assert len(limits)
    rows = np.tile(np.array([0, 3, 1, 0], np.float32), (len(limits), 1))
    rows[:, 0] = limits
    base = np.array(list(product([0.0], range(10), range(3), range(2))), np.float32)
    for low, high in pairwise(limits):
        scores = []
        for value in (low, before(np.array([high]))[0], (low + high) / 2):
            base[:, 0] = value
            scores.append(bundle.score(base).margins.copy())
        assert np.array_equal(scores[0], scores[1])
        assert np.array_equal(scores[0], scores[2])
    changes = 0
    for value in limits:
        sides = []
        for one in (value, before(np.array([value]))[0]):
            base[:, 0] = one
            sides.append(bundle.score(base).margins.copy())
        changes += not np.array_equal(*sides)
    assert changes == len(limits)


def test_transformed_features_are_searched_in_values_of_the_request(tmp_path: Path) -> None:
    steps = [Log1p(feature="a"), Standardise(feature="b", mean=4.5, scale=2.5)]
    bundle = world(tmp_path / "moved", 1, steps)
    for column in (0, 1):
        base = np.array(list(product(range(10), range(10), range(3), range(2))), np.float32)
        for value in ForestThresholds(tmp_path / "moved").boundaries(column):
            sides = []
            for one in (value, before(np.array([value]))[0]):
                base[:, column] = one
                sides.append(bundle.score(base).margins.copy())
            assert not np.array_equal(*sides), (column, value)
    row = declined(bundle)[3]
    found = find_counterfactual(tmp_path / "moved", row, WHOLE, changes=3)
    expected = brute_force(bundle, row, 0, 3)
    assert expected is not None and found.found is not None
    assert (len(found.found.changes), found.found.distance) == (expected[0], pytest.approx(expected[1]))


def test_keys_are_in_the_order_of_floats() -> None:
    values = np.array([-np.inf, -3.5, -1e-40, -0.0, 0.0, 1e-40, 2.0, np.inf], np.float32)
    keys = key_of(values)
    assert (np.diff(keys) >= 0).all()
    assert keys[3] == keys[4]
    assert np.array_equal(float_of(keys), values)


@pytest.mark.parametrize(
    ("actionable", "message"),
    [
        ([], "no feature may be changed"),
        ([ActionableFeature("e")], 'has no feature "e"'),
        ([ActionableFeature("a"), ActionableFeature("a")], '"a" is named twice'),
        ([ActionableFeature("a", levels=("x",))], "is a number and has no levels"),
        ([ActionableFeature("c", low=0, high=1)], "is a category and has no range"),
        ([ActionableFeature("c", levels=("q",))], 'has no level "q"'),
        ([ActionableFeature("d", levels=("yes",))], "is a flag and has no levels"),
        ([ActionableFeature("a", low=7, high=3)], "is empty, from 7 to 3"),
        ([ActionableFeature("a", low=float("nan"))], "has no low end"),
    ],
)
def test_features_that_cannot_be_changed_are_refused(tmp_path: Path, actionable: Any, message: str) -> None:
    world(tmp_path / "small", 0)
    with pytest.raises(BundleError, match=message):
        find_counterfactual(tmp_path / "small", np.zeros(4, np.float32), actionable)


def test_a_number_without_a_range_is_refused(score_bundle: Trained) -> None:
    bare = score_bundle.rows[0]
    found = find_counterfactual(score_bundle.path, bare, [ActionableFeature("amount", whole=True)])
    assert found.exhaustive
    with pytest.raises(BundleError, match=r'label "ok": .* has the decisions approve, review, decline'):
        find_counterfactual(score_bundle.path, bare, [ActionableFeature("amount")], label="ok")
    with pytest.raises(BundleError, match="give 1 to 5"):
        find_counterfactual(score_bundle.path, bare, [ActionableFeature("amount")], changes=6)
    with pytest.raises(BundleError, match=r"row: it has shape \(3,\)"):
        find_counterfactual(score_bundle.path, bare[:3], [ActionableFeature("amount")])


def test_action_bundle_is_refused(action_bundle: Trained) -> None:
    with pytest.raises(BundleError, match="is an action bundle"):
        find_counterfactual(action_bundle.path, action_bundle.rows[0], [ActionableFeature("hour")])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("amount", ActionableFeature("amount")),
        ("amount=0..100.5", ActionableFeature("amount", 0.0, 100.5)),
        ("amount-=..100", ActionableFeature("amount", None, 100.0, direction="decrease")),
        ("count-24h+=0.5..", ActionableFeature("count-24h", 0.5, None, direction="increase")),
        ("hour#-=0..23", ActionableFeature("hour", 0.0, 23.0, direction="decrease", whole=True)),
        ("country=NL, DE", ActionableFeature("country", levels=("NL", "DE"))),
        ("shift=-5..-1", ActionableFeature("shift", -5.0, -1.0)),
        ("level=v1.2", ActionableFeature("level", levels=("v1.2",))),
    ],
)
def test_grammar(text: str, expected: ActionableFeature) -> None:
    assert read_actionable(text) == expected


@pytest.mark.parametrize("text", ["", "=1..2", "a+-", "a##", "a=x..y", "a=1..inf", "a=b,,c"])
def test_grammar_refuses(text: str) -> None:
    with pytest.raises(BundleError, match="is not understood; write NAME"):
        read_actionable(text)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scorer.cli", "explain", "counterfactual", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_command(tmp_path: Path) -> None:
    bundle = world(tmp_path / "small", 0)
    row = declined(bundle)[0]
    payment = tmp_path / "payment.json"
    named = {"a": float(row[0]), "b": float(row[1]), "c": "xyz"[int(row[2])], "d": bool(row[3])}
    payment.write_text(json.dumps(named))
    options = ["--bundle", str(tmp_path / "small"), "--change", "a#", "--change", "b#", "--change", "c=x,y,z"]
    done = run(str(payment), *options, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["label"] == "decline"
    assert found["found"]["label"] == "approve"
    assert found["found"]["changes"]
    payment.write_text(json.dumps({**named, "e": 1}))
    refused = run(str(payment), *options)
    assert refused.returncode == 1
    assert refused.stderr == f'error: payment "{payment}": the bundle has no feature "e"; correct the name\n'
