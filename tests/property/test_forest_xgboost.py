"""Forests that no training would give, in XGBoost's own format, against XGBoost itself."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scorer.errors import ForestError
from scorer.forest import Forest

FEATURES = 3
NUMBERS = [0.0, -0.0, 1e-45, -1e-45, 1.1754944e-38, 1e-35, 0.5, -0.5, 1.0, 2.0, 3.0, 5.0, -1.0]
NUMBERS += [16777216.0, 3.4028235e38, -3.4028235e38]

numbers = st.one_of(
    st.sampled_from(NUMBERS),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(-4, 4, width=32),
)
leaves = st.one_of(st.floats(-8, 8, width=32), st.sampled_from([0.0, -0.0, 1e-45, 1e-30, 1e30, -1e30]))


@st.composite
def tree(draw: st.DrawFn, index: int) -> dict[str, Any]:
    """Generate a tree with adjacent children, which is the layout that XGBoost requires."""
    splits = draw(st.integers(0, 12))
    left, right, parent = [-1], [-1], [2**31 - 1]
    for _ in range(splits):
        node = draw(st.sampled_from([i for i, child in enumerate(left) if child < 0]))
        left[node], right[node] = len(left), len(left) + 1
        left += [-1, -1]
        right += [-1, -1]
        parent += [node, node]
    count = len(left)
    inner = [child >= 0 for child in left]
    kind = [int(is_inner and draw(st.booleans()) and draw(st.booleans())) for is_inner in inner]
    sets = [sorted(draw(st.sets(st.integers(0, 9), min_size=1, max_size=4))) for k in kind if k]
    sizes = [len(members) for members in sets]
    return {
        "id": index,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(FEATURES),
            "num_nodes": str(count),
            "size_leaf_vector": "1",
        },
        "left_children": left,
        "right_children": right,
        "parents": parent,
        "split_indices": [draw(st.integers(0, FEATURES - 1)) if is_inner else 0 for is_inner in inner],
        "split_conditions": [draw(numbers if is_inner else leaves) for is_inner in inner],
        "default_left": [int(is_inner and draw(st.booleans())) for is_inner in inner],
        "split_type": kind,
        "categories_nodes": [i for i, k in enumerate(kind) if k],
        "categories_segments": [sum(sizes[:i]) for i in range(len(sizes))],
        "categories_sizes": sizes,
        "categories": [member for members in sets for member in members],
        "base_weights": [0.0] * count,
        "loss_changes": [0.0] * count,
        "sum_hessian": [0.0] * count,
    }


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    groups = draw(st.sampled_from([1, 1, 3]))
    count = draw(st.integers(0, 20))
    base = [draw(st.floats(-4, 4, width=32)) for _ in range(groups)]
    return {
        "version": [3, 2, 0],
        "learner": {
            "attributes": {},
            "feature_names": [],
            "feature_types": [],
            "learner_model_param": {
                "base_score": json.dumps(base),
                "boost_from_average": "0",
                "num_class": "0",
                "num_feature": str(FEATURES),
                "num_target": str(groups),
            },
            "objective": {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}},
            "gradient_booster": {
                "name": "gbtree",
                "model": {
                    "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(count)},
                    "iteration_indptr": list(range(count + 1)),
                    "tree_info": [draw(st.integers(0, groups - 1)) for _ in range(count)],
                    "trees": [draw(tree(i)) for i in range(count)],
                },
            },
        },
    }


def values(document: dict[str, Any]) -> np.ndarray:
    """Generate thresholds, adjacent floats, categories and special floats."""
    trees = document["learner"]["gradient_booster"]["model"]["trees"]
    at = np.array([c for part in trees for c in part["split_conditions"]] + NUMBERS, np.float32)
    odd = np.array([np.nan, np.inf, -np.inf, 9.0, 9.5, 10.0, -0.25, 4e9], np.float32)
    up, down = np.float32(np.inf), np.float32(-np.inf)
    with np.errstate(over="ignore"):
        return np.concatenate([at, np.nextafter(at, up), np.nextafter(at, down), odd])


@pytest.mark.fault_case(21)
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(documents(), st.integers(0, 2**32 - 1))
def test_any_forest_is_equal_at_its_thresholds(document: dict[str, Any], seed: int) -> None:
    booster = xgb.Booster({"nthread": 1}, model_file=bytearray(json.dumps(document).encode()))
    rows = np.random.default_rng(seed).choice(values(document), (300, FEATURES))
    expected = booster.inplace_predict(rows, predict_type="margin", validate_features=False)
    for kind in ("json", "ubj"):
        predictions = Forest.from_xgboost(bytes(booster.save_raw(kind))).predict(rows, margin=True)
        np.testing.assert_array_equal(
            predictions.view(np.uint32), expected.reshape(predictions.shape).view(np.uint32)
        )
    predictions = Forest.from_xgboost(json.dumps(document).encode()).predict(rows, margin=True)
    np.testing.assert_array_equal(
        predictions.view(np.uint32), expected.reshape(predictions.shape).view(np.uint32)
    )


def small_model() -> xgb.Booster:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(300, 4)).astype(np.float32)
    rows[:, 3] = rng.integers(0, 12, 300)
    types = ["q", "q", "q", "c"]
    data = xgb.DMatrix(rows, rows[:, 0] + rows[:, 3] % 3, feature_types=types, enable_categorical=True)
    return xgb.train({"max_depth": 3, "max_cat_to_onehot": 1, "nthread": 1}, data, 3)


MODEL = small_model()
FILES = {kind: bytes(MODEL.save_raw(kind)) for kind in ("json", "ubj")}


@pytest.mark.fault_case(59)
@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["json", "ubj"]),
    st.lists(st.tuples(st.integers(0, 2**30), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 2**30),
)
def test_altered_files_are_read_or_refused(kind: str, edits: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(FILES[kind])
    for at, value in edits:
        data[at % len(data)] = value
    for part in (bytes(data), FILES[kind][: cut % len(data)]):
        try:
            forest = Forest.from_xgboost(part)
        except ForestError:
            continue
        assert np.isfinite(forest.predict(np.zeros((2, forest.num_features), np.float32), margin=True)).all()


@pytest.mark.fault_case(59)
@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**30), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 2**30),
)
def test_altered_packed_forests_are_refused(edits: list[tuple[int, int]], cut: int) -> None:
    good = Forest.from_xgboost(MODEL).to_bytes()
    data = bytearray(good)
    for at, value in edits:
        data[at % len(data)] = value
    for part in (bytes(data), good[: cut % len(good)]):
        if part != good:
            try:
                Forest.from_bytes(part)
            except ForestError:
                continue
            raise AssertionError("an altered forest was loaded")
