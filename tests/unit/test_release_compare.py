"""Tests of comparisons: properties, figures, swap set and gates, and sides that cannot be compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import FEATURES, tiny_action_bundle, tiny_score_bundle
from versions import MLFLOW, History

from scorer.bundle.rules import BundleRules
from scorer.bundle.splits import forest_shape
from scorer.errors import ForestError
from scorer.figure import Figure
from scorer.forest import Forest
from scorer.release.answers import BundleDetail, BundleInfo, RuleText
from scorer.release.errors import InvalidError, NotFoundError
from scorer.release.shown_rules import shown_rules
from scorer.release.version_answers import BundleComparison, PropertyDifference
from scorer.release.versions import figures, swaps
from scorer.release.versions.differences import differences


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Iterator[History]:
    history = History(tmp_path_factory.mktemp("history"), built_bundles)
    yield history
    history.close()


def compare(history: History, left: str, right: str, user: str = "viewer") -> BundleComparison:
    result: BundleComparison = history.world.service.comparisons.compare(
        history.world.actor(user), left, right
    )
    return result


def of(comparison: BundleComparison, group: str) -> dict[str, PropertyDifference]:
    return {one.name: one for one in comparison.differences if one.group == group}


def test_two_bundles_are_compared_property_by_property(history: History) -> None:
    result = compare(history, history.first, history.second)
    metrics, parameters = of(result, "metrics"), of(result, "parameters")
    assert (metrics["auc"].left, metrics["auc"].right, metrics["auc"].change) == (0.91, 0.94, "changed")
    assert (parameters["max_depth"].left, parameters["max_depth"].right) == ("3", "4")
    assert parameters["algorithm"].change == "same"
    assert list(of(result, "schema").values()) == [
        PropertyDifference("schema", "number of features", 4.0, 4.0, "same")
    ]
    assert of(result, "thresholds")["review"].left == 0.4
    assert of(result, "calibration") == {
        "method": PropertyDifference("calibration", "method", "none", "none", "same")
    }
    size = of(result, "size")
    assert size["forest.bin: trees"].left == 8.0
    assert size["forest.bin: nodes"].change == "changed"
    assert (result.left.change.id, result.left.rows) == (history.tested, 3_000)  # type: ignore[union-attr]
    assert result.right.run_url == f"{MLFLOW}/#/runs/{22:032x}"
    assert result.notes == ()


RULES = """
name = "checkout"
decisions = ["decline", "review", "approve"]

[[values]]
name = "large"
is = "amount > 500.0"

[[rules]]
id = "night"
when = "large && hour < 6.0"
decision = "review"
floor = 0.6
reason = "R1"
source = "agreement 7"
from = 2026-11-01
rollout = 25.0

[[rules]]
id = "stolen"
when = "distance > 90.0"
decision = "decline"

[[tables]]
id = "limits"
inputs = ["amount", "hour"]
outputs = ["decision", "reason"]
rows = [["> 900.0", "-", "decline", "T1"], ["[700..900]", 3.0, "review", "-"]]
"""


def test_rules_are_listed_and_those_that_differ_are_compared(tmp_path: Path) -> None:
    changed = RULES.replace("hour < 6.0", "hour < 5.0").replace('id = "stolen"', 'id = "far"')
    details = {}
    for name, text in (("none", None), ("first", RULES), ("second", changed)):
        built = tmp_path / name
        tiny_score_bundle(built, rules=BundleRules(text) if text else None)
        info = BundleInfo(name, "n", "score", "p", 1, "u", None)
        manifest = json.loads((built / "manifest.json").read_bytes())
        details[name] = BundleDetail(info, manifest, {}, {}, (), (), shown_rules(built))
    assert details["none"].rules == ()
    assert details["first"].rules == (
        RuleText("large", "value", "amount > 500.0", "", "", ""),
        RuleText(
            "night",
            "rule",
            "large && hour < 6.0",
            "decision review, reason R1, floor 0.6",
            "from 2026-11-01, 25 % of requests",
            "agreement 7",
        ),
        RuleText("stolen", "rule", "distance > 90.0", "decision decline", "", ""),
        RuleText("limits.row1", "table, hit first", "amount > 900.0", "decision decline, reason T1", "", ""),
        RuleText(
            "limits.row2", "table, hit first", "amount [700..900] and hour 3", "decision review", "", ""
        ),
    )

    def of_rules(left: str, right: str) -> dict[str, str]:
        found = differences(details[left], details[right], lambda name: tmp_path / name)
        return {one.name: one.change for one in found if one.group == "rules"}

    assert of_rules("first", "second") == {
        "number of rules": "same",
        "night": "changed",
        "stolen": "removed",
        "far": "added",
    }
    assert set(of_rules("none", "first").values()) == {"added"}
    assert of_rules("none", "none") == {}


def test_different_features_are_listed_and_equal_ones_are_counted(tmp_path: Path) -> None:
    tiny_score_bundle(tmp_path / "b")

    def detail(features: list[dict[str, Any]]) -> BundleDetail:
        info = BundleInfo("d", "n", "score", "p", 1, "u", None)
        return BundleDetail(info, {}, {}, {}, features, ())

    left = detail([{"name": "amount"}, {"name": "hour", "minimum": 0.0}, {"name": "old"}])
    right = detail(
        [{"name": "amount"}, {"name": "hour", "minimum": 1.0, "missing": "refuse"}, {"name": "new"}]
    )
    result = {one.name: one for one in differences(left, right, lambda _: tmp_path / "b")}
    assert (result["old"].change, result["new"].change) == ("removed", "added")
    assert result["hour"].right == "number; required; from 1.0 to any"
    assert "amount" not in result


def test_the_swap_set_against_the_live_bundle_equals_the_flip_matrix(history: History) -> None:
    result = compare(history, history.live, history.passed)
    swaps_ = result.swaps
    assert swaps_ is not None
    shadow = history.stricter.shadow
    approve = shadow.labels().index("approve")
    live, own = shadow.live_label != approve, shadow.label != approve
    assert swaps_.decisions == len(shadow)
    assert (swaps_.left_only, swaps_.right_only) == (int((live & ~own).sum()), int((own & ~live).sum()))
    assert (swaps_.both, swaps_.neither) == (int((live & own).sum()), int((~live & ~own).sum()))
    assert swaps_.right_only and swaps_.right_only > 100
    assert history.passed in swaps_.words
    turned = compare(history, history.passed, history.live).swaps
    assert turned is not None
    assert (turned.left_only, turned.right_only) == (swaps_.right_only, swaps_.left_only)


def test_two_bundles_with_the_same_live_bundle_are_paired_by_decision(history: History) -> None:
    result = compare(history, history.tested, history.passed).swaps
    assert result is not None
    first, second = history.base.shadow, history.stricter.shadow
    approve = first.labels().index("approve")
    assert (first.key == second.key).all()
    assert result.decisions == len(first)
    assert result.differing == int((first.label != second.label).sum())
    assert (result.left_only, result.right_only) == (
        0,
        int(((second.label != approve) & (first.label == approve)).sum()),
    )
    assert sum(count for _, _, count in result.matrix) == result.decisions


def test_decisions_that_only_one_bundle_observed_are_excluded(history: History) -> None:
    base = history.base
    half = replace(base, shadow=base.shadow.take(np.arange(0, 3_000, 2)))
    result = swaps.over_common(half, history.stricter, "approve")
    assert result is not None and result.decisions == 1_500
    elsewhere = replace(base, shadow=replace(base.shadow, key=base.shadow.key + np.uint64(1 << 40)))
    assert swaps.over_common(elsewhere, base, "approve") is None


def test_figures_are_overlaid(history: History) -> None:
    result = {one.name: one for one in compare(history, history.tested, history.passed).figures}
    assert set(result) == {"reference", "observed-scores", "execution", "importance"}
    execution = result["execution"]
    assert execution.plotly["layout"]["xaxis"]["type"] == "log"
    assert "SLA 5 ms" in {trace["name"] for trace in execution.plotly["data"]} | {
        one["text"] for one in execution.plotly["layout"]["annotations"]
    }
    names = {row[0] for row in execution.rows}
    assert len(names) == 2
    assert {name.partition(" ")[0] for name in names} == {"left", "right"}
    for name in names:
        shares = [row[3] for row in result["observed-scores"].rows if row[0] == name]
        assert sum(shares) == pytest.approx(1)
    assert {row[0] for row in result["importance"].rows} == set(FEATURES)


def test_a_side_keeps_its_colour_and_its_name_where_it_is_alone() -> None:
    """Of two bundles, often one has a report: the live bundle was never under test."""
    scores = Figure(
        "scores", "", ".", {}, ("from", "to", "live", "shadow"), [(0.0, 0.5, 0.6, 0.7), (0.5, 1.0, 0.4, 0.3)]
    )
    latency = Figure(
        "latency", "", ".", {}, ("side", "share", "exec_us"), [("shadow", 0.5, 8.0), ("shadow", 1.0, 20.0)]
    )
    for alone, both in (
        (
            figures.observed_scores({"left": None, "right": scores}),
            figures.observed_scores({"left": scores, "right": scores}),
        ),
        (
            figures.execution({"left": None, "right": latency}, [50]),
            figures.execution({"left": latency, "right": latency}, [50]),
        ),
    ):
        assert alone is not None and both is not None
        lines = {one["name"]: one["line"] for one in both.plotly["data"]}
        (own,) = [one for one in alone.plotly["data"] if not one["name"].startswith("SLA")]
        assert own["name"] == "right"
        assert own["line"] == lines["right"] != lines["left"]
        assert alone.plotly["layout"]["showlegend"]
    assert figures.observed_scores({"left": None, "right": None}) is None
    assert figures.execution({"left": None, "right": None}, []) is None


def test_importances_of_the_lineages_precede_splits() -> None:
    importance = figures.importance({"a": {"x": 3.0, "y": 1.0}, "b": {"y": 2.0}}, "Gain")
    assert importance is not None
    assert importance.rows == [("y", 0.25, 1.0), ("x", 0.75, None)]
    assert figures.importance({"a": {"x": 1.0}, "b": {}}, "Gain") is None


def test_histograms_with_other_bins_are_densities_and_keep_their_gaps() -> None:
    one = {"edges": [0.0, 0.1, 0.2, 1.0], "counts": [50, 0, 50]}
    other = {"edges": [0.0, 0.5, 1.0], "counts": [10, 30]}
    references = figures.references({"a": one, "b": other})
    assert references is not None
    first, second = references.plotly["data"]
    assert first["x"] == [0.0, 0.1, None, 0.2, 1.0]
    assert first["y"] == [pytest.approx(0.05), pytest.approx(0.05), None] + [pytest.approx(0.00625)] * 2
    assert second["y"] == pytest.approx([0.005, 0.005, 0.015, 0.015])
    assert figures.references({"a": {"edges": [0.0, 1.0], "counts": [0]}}) is None


def test_gates_of_both_reports_are_paired(history: History) -> None:
    pairs = compare(history, history.tested, history.passed).gates
    flips = next(pair for pair in pairs if pair.metric == "flip_rate")
    assert flips.left is not None and flips.right is not None
    assert flips.right.value > flips.left.value  # type: ignore[operator]
    alone = compare(history, history.live, history.tested)
    assert all(pair.left is None for pair in alone.gates)
    assert alone.notes == (
        f"Bundle {history.live[7:19]} (left) has no report, so its observations are not compared.",
    )


def test_without_a_common_live_bundle_there_is_no_swap_set(history: History) -> None:
    change = history._tested(history.world.candidate, history.base, "Elsewhere")
    history.report(change, history.world.candidate, history.base, live="sha256:" + "5" * 64)
    result = compare(history, history.passed, change)
    assert result.swaps is None
    assert any("beside different live bundles" in note for note in result.notes)


@pytest.mark.parametrize(
    ("left", "right", "error", "words"),
    [
        ("", "cr-000001", InvalidError, "left is missing; choose a bundle"),
        ("live", "", InvalidError, "right is missing"),
        ("sha256:" + "0" * 64, "live", NotFoundError, "left: "),
        ("cr-999999", "live", NotFoundError, 'left: there is no change request "cr-999999"'),
        ("no such thing", "live", (InvalidError, NotFoundError), "left: "),
        ("x" * 300, "live", InvalidError, "left has 300 characters"),
        ("live", "other", NotFoundError, "right: there is no bundle"),
        ("live", "foreign", NotFoundError, "right: there is no change request"),
        (
            "live",
            "action-authorise@live",
            InvalidError,
            "left is a bundle of kind score and right is one of kind",
        ),
    ],
)
def test_bundles_that_cannot_be_compared_are_reported(
    history: History, left: str, right: str, error: Any, words: str
) -> None:
    """Objects of other projects are reported as if they did not exist."""
    named = {name: getattr(history, name) for name in ("live", "other", "foreign")}
    with pytest.raises(error, match=words):
        compare(history, named.get(left, left), named.get(right, right))
    assert compare(history, named["other"], named["foreign"], user="outsider").left.rows == 0


def test_a_comparison_of_a_bundle_with_itself_is_reported(history: History) -> None:
    result = compare(history, history.first, history.tested)
    assert "Both sides are the same bundle" in result.notes[0]
    assert {one.change for one in result.differences} == {"same"}


def test_action_bundles_are_compared_by_policy(history: History, tmp_path: Path) -> None:
    from scorer.registry import Registry

    tiny_action_bundle(tmp_path / "a", variant=5, policy={"rule": "uniform", "floor": 0.0, "salt": "0" * 32})
    digest = Registry(history.world.settings.platform.registry).push(tmp_path / "a")
    result = compare(history, "action-authorise@live", digest)
    policy = of(result, "policy")
    assert (policy["rule"].left, policy["rule"].right) == ("epsilon_greedy", "uniform")
    assert policy["actions"].change == "same"
    assert of(result, "thresholds") == {}


# --- splits ---


def test_splits_equal_those_that_xgboost_counts(tmp_path: Path) -> None:
    import xgboost

    random = np.random.default_rng(4)
    rows = random.normal(size=(800, 5)).astype(np.float32)
    rows[random.random(rows.shape) < 0.1] = np.nan
    labels = (np.nan_to_num(rows[:, 0]) + np.nan_to_num(rows[:, 3]) > 0.3).astype(np.float32)
    names = [f"f{n}" for n in range(5)]
    model = xgboost.train(
        {"max_depth": 5, "objective": "binary:logistic", "nthread": 1},
        xgboost.DMatrix(rows, labels, feature_names=names),
        20,
    )
    Forest.from_xgboost(model).save(tmp_path / "forest.bin")
    shape = forest_shape(tmp_path / "forest.bin")
    counts = model.get_score(importance_type="weight")
    assert shape.splits.tolist() == [int(counts.get(name, 0)) for name in names]
    forest = Forest.load(tmp_path / "forest.bin")
    assert (shape.trees, shape.nodes) == (forest.num_trees, forest.num_nodes)


def test_splits_on_categories_count_for_their_feature(tmp_path: Path) -> None:
    import lightgbm

    random = np.random.default_rng(5)
    rows = np.stack([random.normal(size=2000), random.integers(0, 90, 2000)], axis=1)
    labels = (rows[:, 0] + (rows[:, 1] % 7 == 3) * 2 > 0.5).astype(int)
    data = lightgbm.Dataset(rows, labels, categorical_feature=[1])
    model = lightgbm.train({"objective": "binary", "verbose": -1, "num_threads": 1}, data, 10)
    Forest.from_lightgbm(model).save(tmp_path / "forest.bin")
    expected = model.feature_importance("split").tolist()
    assert expected[1] > 0
    assert forest_shape(tmp_path / "forest.bin").splits.tolist() == expected


def test_a_file_that_is_not_a_forest_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "forest.bin"
    with pytest.raises(ForestError, match="cannot be read"):
        forest_shape(file)
    file.write_bytes(b"SCFOREST" + bytes(200))
    with pytest.raises(ForestError, match="no packed forest"):
        forest_shape(file)
    tiny_score_bundle(tmp_path / "b")
    file.write_bytes((tmp_path / "b" / "forest.bin").read_bytes()[:-9])
    with pytest.raises(ForestError, match="do not fit"):
        forest_shape(file)
