"""Tests that bundles built from real models return the results of those models."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost
from trained import (
    ACTION_FEATURES,
    ACTIONS,
    BANDS,
    CONTEXT,
    CREATED,
    LINEAGE,
    SALT,
    Trained,
    contexts,
    labels_of,
    train,
)

from scorer.bundle import (
    Action,
    Band,
    Cap,
    Feature,
    HeldOut,
    Log1p,
    PolicySpec,
    ReasonEntry,
    ReasonsFile,
    SchemaFile,
    SigmoidMap,
    Standardise,
    build_action_bundle,
    build_score_bundle,
    describe_lineage,
    fit_isotonic,
    fit_sigmoid,
    inspect,
    transform,
    verify,
)
from scorer.errors import BundleError
from scorer.forest import Forest

SCORE_FILES = [
    "calibration.json",
    "covers.bin",
    "forest.bin",
    "golden.bin",
    "manifest.json",
    "reference.json",
    "schema.json",
]


def build(path: Path, **changes: Any) -> str:
    rows = contexts(600)
    settings: dict[str, Any] = {
        "name": "fraud",
        "schema": SchemaFile(features=CONTEXT),
        "bands": BANDS,
        "training": rows[:400],
        "validation": rows[400:],
        "lineage": LINEAGE,
        "created_at": CREATED,
    }
    return build_score_bundle(path, **{**settings, **changes}).digest


def test_scores_equal_those_of_the_model(score_bundle: Trained) -> None:
    rows = score_bundle.rows[2000:]
    names = [feature.name for feature in CONTEXT]
    matrix = xgboost.DMatrix(rows, feature_names=names)
    margins = score_bundle.model.predict(matrix, output_margin=True).astype(np.float64)
    out = score_bundle.bundle.score(rows)
    np.testing.assert_array_equal(out.margins, margins)
    # The calibration map was fitted on these rows; scikit-learn gives the expected values.
    from sklearn.isotonic import IsotonicRegression

    predictions = score_bundle.model.predict(matrix).astype(np.float64)
    fitted = IsotonicRegression(out_of_bounds="clip").fit(predictions, score_bundle.labels[2000:])
    np.testing.assert_allclose(out.scores, fitted.predict(predictions), atol=1e-12)
    np.testing.assert_array_equal(out.bands, np.searchsorted([0.5, 0.9], out.scores, side="right"))


def test_a_bundle_has_the_expected_files_and_manifest(score_bundle: Trained) -> None:
    assert sorted(file.name for file in score_bundle.path.iterdir()) == SCORE_FILES
    inspection = inspect(score_bundle.path)
    assert inspection.digest == score_bundle.bundle.digest
    assert inspection.manifest.lineage == LINEAGE
    assert inspection.manifest.created_at == "2026-01-02T00:00:00Z"
    assert inspection.data == score_bundle.schema
    assert inspection.reference.training.count == 2000
    scores = score_bundle.bundle.score(score_bundle.rows[2000:]).scores
    validation = inspection.reference.validation
    assert validation.mean == pytest.approx(scores.mean())
    assert validation.quantiles[50] == pytest.approx(np.median(scores))
    even = np.linspace(0, 1, 51)
    assert set(even) <= set(validation.edges)
    assert validation.counts == np.histogram(scores, bins=validation.edges)[0].tolist()
    # Except for ties, 5 % of the scores lie between two adjacent cuts, and no cut equals a score.
    cuts = sorted(set(validation.edges) - set(even))
    assert not set(cuts) & set(scores)
    wanted = np.sort(scores)[np.arange(1, 20) * len(scores) // 20]
    assert all(np.abs(np.array(validation.edges) - at).min() < 0.02 for at in wanted)


def test_the_covers_of_the_model_and_the_dictionary_of_reasons(tmp_path: Path, score_bundle: Trained) -> None:
    entry = ReasonEntry(code="R07", text={"en": "Unusual hour", "nl": "Ongebruikelijk uur"})
    reasons = ReasonsFile(features={"hour": entry})
    build(tmp_path / "fraud", model=score_bundle.model, reasons=reasons)
    bundle = verify(tmp_path / "fraud")
    assert bundle.explains
    assert bundle.columns == [feature.name for feature in CONTEXT]
    assert bundle.reason_codes == ["amount", "R07", "country", "night"]
    assert inspect(tmp_path / "fraud").reasons == reasons
    # The packed forest is the same file with and without covers.
    forest = Forest.from_xgboost(score_bundle.model)
    assert (tmp_path / "fraud" / "forest.bin").read_bytes() == forest.to_bytes()
    assert (tmp_path / "fraud" / "covers.bin").read_bytes() == forest.covers()


def test_a_bundle_without_covers_gives_no_reasons(tmp_path: Path, bare_bundle: Trained) -> None:
    assert "covers.bin" not in {file.name for file in bare_bundle.path.iterdir()}
    assert not bare_bundle.bundle.explains
    assert bare_bundle.bundle.reason_codes == []
    with pytest.raises(BundleError, match=r"the bundle has no covers\.bin"):
        bare_bundle.bundle.explain(bare_bundle.rows[0])
    forest = Forest.from_bytes(Forest.from_xgboost(bare_bundle.model).to_bytes())
    with pytest.raises(BundleError, match="states no usable weights of its nodes"):
        build(
            tmp_path / "fraud",
            model=forest,
            margins=lambda rows: forest.predict(rows, margin=True),
            reasons=ReasonsFile(features={}),
        )


def test_a_dictionary_with_an_unknown_feature_is_refused(tmp_path: Path, score_bundle: Trained) -> None:
    reasons = ReasonsFile(features={"colour": ReasonEntry(code="R01")})
    with pytest.raises(BundleError, match=r'reasons\.json: "colour": the schema has no such feature'):
        build(tmp_path / "fraud", model=score_bundle.model, reasons=reasons)


def test_the_same_inputs_give_the_same_digest(tmp_path: Path, score_bundle: Trained) -> None:
    one, two = (
        build(tmp_path / "1", model=score_bundle.model),
        build(tmp_path / "2", model=score_bundle.model),
    )
    later = datetime(2027, 1, 1, tzinfo=UTC)
    assert one == two != build(tmp_path / "3", model=score_bundle.model, created_at=later)


def test_the_chosen_actions_follow_from_the_model_and_can_be_repeated(action_bundle: Trained) -> None:
    rows = action_bundle.rows[2900:]
    own = np.array([action.features for action in ACTIONS], dtype=np.float32)
    whole = np.concatenate([np.repeat(rows, len(ACTIONS), axis=0), np.tile(own, (len(rows), 1))], axis=1)
    names = [feature.name for feature in action_bundle.schema.columns]
    margins = action_bundle.model.predict(xgboost.DMatrix(whole, feature_names=names), output_margin=True)
    inspection = inspect(action_bundle.path)
    assert inspection.calibration is not None
    fitted = inspection.calibration.maps["main"]
    assert isinstance(fitted, SigmoidMap)
    rewards = 1 / (1 + np.exp(-(fitted.slope * margins.astype(np.float64) + fitted.intercept)))
    eligible = np.random.default_rng(5).random((len(rows), len(ACTIONS))) < 0.6
    eligible[:, 0] = True
    pmf, seen = action_bundle.bundle.evaluate(rows, eligible=eligible)
    np.testing.assert_allclose(seen[eligible], rewards.reshape(len(rows), -1)[eligible], rtol=1e-12)
    assert np.isnan(seen[~eligible]).all()
    assert (pmf[~eligible] == 0).all()
    np.testing.assert_allclose(pmf.sum(axis=1), 1, atol=1e-12)
    assert (pmf[eligible] >= (0.06 / eligible.sum(axis=1, keepdims=True) * eligible)[eligible]).all()
    for at in range(20):
        ids = {"checkpoint": "action.authorise", "decision_id": f"order-{at}"}
        first = action_bundle.bundle.select(rows[at], eligible=eligible[at], **ids)
        again = verify(action_bundle.path).select(rows[at], eligible=eligible[at], **ids)
        assert (first.index, first.propensity) == (again.index, again.propensity)
        assert first.action == ACTIONS[first.index].id
        np.testing.assert_array_equal(first.pmf, pmf[at])
        greedy = action_bundle.bundle.select_greedy(rows[at], eligible=eligible[at])
        assert greedy.propensity == 1.0
        assert greedy.index == np.nanargmax(seen[at])


def test_bagging_counts_the_members_that_prefer_an_action(tmp_path: Path, action_bundle: Trained) -> None:
    rows = contexts(400, seed=7)
    own = np.array([action.features for action in ACTIONS], dtype=np.float32)
    taken = np.random.default_rng(8).integers(0, len(ACTIONS), len(rows))
    whole = np.concatenate([rows, own[taken]], axis=1)
    names = [feature.name for feature in action_bundle.schema.columns]
    members = [train(whole, labels_of(whole, seed), names, subsample=0.5, seed=seed) for seed in range(4)]
    build_action_bundle(
        tmp_path / "bag",
        name="bag",
        model=action_bundle.model,
        voters=members,
        schema=action_bundle.schema,
        actions=ACTIONS,
        policy=PolicySpec(rule="bagging", voters=4, salt=SALT),
        training=rows,
        validation=rows,
        lineage=LINEAGE,
    )
    bundle = verify(tmp_path / "bag")
    assert len(bundle.forests) == 5
    expected = np.zeros((50, len(ACTIONS)))
    every = np.concatenate([np.repeat(rows[:50], len(ACTIONS), axis=0), np.tile(own, (50, 1))], axis=1)
    for member in members:
        scores = member.predict(xgboost.DMatrix(every, feature_names=names)).reshape(50, -1)
        best = scores == scores.max(axis=1, keepdims=True)
        expected += best / best.sum(axis=1, keepdims=True) / 4
    np.testing.assert_allclose(bundle.evaluate(rows[:50])[0], expected, atol=1e-12)


def test_transforms_are_applied_in_training_and_serving(tmp_path: Path) -> None:
    rows = contexts(1000)
    steps = [Log1p(feature="amount"), Standardise(feature="hour", mean=12.0, scale=6.0)]
    seen = transform(CONTEXT, steps, rows)
    model = train(seen, labels_of(rows), [feature.name for feature in CONTEXT])
    build(tmp_path / "t", model=model, steps=steps, training=rows)
    expected = model.predict(
        xgboost.DMatrix(seen, feature_names=[feature.name for feature in CONTEXT]), output_margin=True
    )
    np.testing.assert_array_equal(verify(tmp_path / "t").score(rows).margins, expected)
    # Without the node, the same model gets other values.
    build(tmp_path / "without", model=model, training=rows)
    assert (verify(tmp_path / "without").score(rows).margins != expected).any()


@pytest.mark.parametrize(
    "library", ["lightgbm", "gradient", "hist", "forest", "xgb_api", "ubj", "json", "txt", "scorer"]
)
def test_models_of_every_library_are_built(tmp_path: Path, library: str, score_bundle: Trained) -> None:
    rows, labels = score_bundle.rows[:800], score_bundle.labels[:800]
    filled = np.nan_to_num(rows)
    names = [feature.name for feature in CONTEXT]
    index, margins, output = 0, None, None
    if library in ("lightgbm", "txt"):
        import lightgbm

        data = lightgbm.Dataset(rows, labels, feature_name=names)
        model: Any = lightgbm.train({"objective": "binary", "verbosity": -1, "num_threads": 1}, data, 10)
        output = model.predict(rows)
        if library == "txt":
            model.save_model(tmp_path / "model.txt")
            model = tmp_path / "model.txt"
    elif library == "gradient":
        from sklearn.ensemble import GradientBoostingClassifier

        model = GradientBoostingClassifier(n_estimators=10).fit(filled, labels)
        rows, output = filled, model.predict_proba(filled)[:, 1]
    elif library == "hist":
        from sklearn.ensemble import HistGradientBoostingClassifier

        model = HistGradientBoostingClassifier(max_iter=10).fit(rows, labels)
        output = model.predict_proba(rows)[:, 1]
    elif library == "forest":
        from sklearn.ensemble import RandomForestClassifier

        model = RandomForestClassifier(n_estimators=10, max_depth=5).fit(filled, labels)
        rows, output, index = filled, model.predict_proba(filled)[:, 1], 1
    elif library == "xgb_api":
        model = xgboost.XGBClassifier(n_estimators=30, max_depth=3, early_stopping_rounds=2, n_jobs=1)
        model.fit(rows[:400], labels[:400], eval_set=[(rows[400:], labels[400:])], verbose=False)
        output = model.predict_proba(rows)[:, 1]
    elif library == "scorer":
        model = Forest.from_xgboost(score_bundle.model)
        output = model.predict(rows)

        def margins(given: np.ndarray) -> np.ndarray:
            matrix = xgboost.DMatrix(given, feature_names=names)
            return score_bundle.model.predict(matrix, output_margin=True)

    else:
        model = tmp_path / f"model.{library}"
        score_bundle.model.save_model(model)
        output = score_bundle.model.predict(xgboost.DMatrix(rows, feature_names=names))
    schema = SchemaFile(
        features=[
            feature.model_copy(update={"missing": "refuse"}) if rows is filled else feature
            for feature in CONTEXT
        ]
    )
    build(
        tmp_path / "b",
        model=model,
        schema=schema,
        training=rows,
        validation=rows,
        output_index=index,
        margins=margins,
    )
    np.testing.assert_allclose(verify(tmp_path / "b").score(rows).scores, output, rtol=1e-6)


def test_multi_class_models_score_one_class(tmp_path: Path) -> None:
    rows = contexts(500)
    labels = np.nan_to_num(rows[:, 2])
    names = [feature.name for feature in CONTEXT]
    model = train(rows, labels, names, objective="multi:softprob", num_class=3)
    build(tmp_path / "b", model=model, output_index=2)
    out = verify(tmp_path / "b").score(rows)
    matrix = xgboost.DMatrix(rows, feature_names=names)
    np.testing.assert_allclose(out.scores, model.predict(matrix)[:, 2], rtol=1e-6)
    np.testing.assert_array_equal(out.margins, model.predict(matrix, output_margin=True)[:, 2])


def test_sigmoid_calibration_equals_that_of_scikit_learn(score_bundle: Trained) -> None:
    from sklearn.linear_model import LogisticRegression

    margins = score_bundle.bundle.score(score_bundle.rows).margins
    fitted = fit_sigmoid(margins, score_bundle.labels)
    # The regularisation is negligible, so that both methods reach the same optimum.
    other = LogisticRegression(C=1e9, tol=1e-8, solver="newton-cholesky").fit(
        margins[:, None], score_bundle.labels
    )
    assert fitted.slope == pytest.approx(other.coef_[0, 0], rel=1e-4)
    assert fitted.intercept == pytest.approx(other.intercept_[0], abs=1e-4)


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([0.1, np.nan], [0, 1], "a score is NaN or infinite"),
        ([0.1, 0.2], [0, 2], "labels must be 0 and 1"),
        ([0.1, 0.2], [1, 1], "both must occur"),
        ([0.1], [0, 1], "1 scores and 2 labels"),
        ([], [], "0 scores and 0 labels"),
    ],
)
def test_invalid_calibrations_are_refused(scores: list[float], labels: list[float], message: str) -> None:
    for fit in (fit_isotonic, fit_sigmoid):
        with pytest.raises(BundleError, match=message):
            fit(scores, labels)


def test_a_decreasing_calibration_is_refused() -> None:
    with pytest.raises(BundleError, match="do not rise with the labels"):
        fit_sigmoid([1.0, 0.9, 0.1, 0.0, 0.5], [0, 0, 1, 1, 0])


class TestRefusals:
    """Inputs that the builder refuses, with their messages."""

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"name": "../up"}, "name must be 1 to 128 letters"),
            ({"bands": []}, "0 bands; give 1 to 64"),
            ({"bands": [Band(start=0.5, label="a")]}, "scores from 0 to 0.5 have no band"),
            ({"bands": [Band(start=0, label="a"), Band(start=0, label="b")]}, "ascending order"),
            ({"schema": SchemaFile(features=CONTEXT[:3])}, "takes 4 features, the schema has 3"),
            (
                {"schema": SchemaFile(features=[*CONTEXT[1::-1], *CONTEXT[2:]])},
                'column 0 is "amount", the schema has "hour"',
            ),
            (
                {"schema": SchemaFile(features=CONTEXT, action_features=ACTION_FEATURES)},
                "a score bundle has no action_features",
            ),
            ({"training": contexts(10)[:0]}, "no rows"),
            ({"golden_cases": 255}, "255 cases, at least 256 are needed"),
            ({"output_index": 1}, "index 1 is beyond the model's 1 predictions"),
            ({"model": object()}, "model of type object (builtins) is not known"),
            ({"model": "nowhere.ubj"}, 'model "nowhere.ubj" is missing'),
            ({"steps": [Log1p(feature="amt")]}, 'feature "amt" is not in the schema'),
            ({"margins": lambda rows: np.zeros((len(rows), 2))}, "2 margins per row, the forest has 1"),
        ],
    )
    def test_invalid_inputs_are_refused(
        self, tmp_path: Path, score_bundle: Trained, changes: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(BundleError) as error:
            build(tmp_path / "b", **{"model": score_bundle.model, **changes})
        assert message in str(error.value)
        assert "\n" not in str(error.value)
        assert list(tmp_path.iterdir()) == []

    def test_a_model_that_the_engine_does_not_reproduce_is_refused(
        self, tmp_path: Path, score_bundle: Trained
    ) -> None:
        def off_by_one_ulp(rows: np.ndarray) -> np.ndarray:
            names = [feature.name for feature in CONTEXT]
            margins = score_bundle.model.predict(
                xgboost.DMatrix(rows, feature_names=names), output_margin=True
            )
            margins[17] = np.nextafter(margins[17], np.float32(9))
            return margins

        with pytest.raises(
            BundleError, match=r"golden case 17: margin 0x[0-9a-f]{16} expected 0x[0-9a-f]{16}"
        ):
            build(tmp_path / "b", model=score_bundle.model, margins=off_by_one_ulp)
        assert list(tmp_path.iterdir()) == []

    def test_an_existing_directory_is_refused(self, tmp_path: Path, score_bundle: Trained) -> None:
        (tmp_path / "b").mkdir()
        with pytest.raises(BundleError, match="exists; bundles are immutable"):
            build(tmp_path / "b", model=score_bundle.model)

    def test_too_many_actions_are_refused(self, tmp_path: Path, action_bundle: Trained) -> None:
        actions = [Action(id=str(i), features=[0.0, 0.0]) for i in range(4097)]
        with pytest.raises(BundleError, match="4097 actions, at most 4096 are allowed"):
            self.build_action(tmp_path, action_bundle, actions=actions)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"actions": [ACTIONS[0], ACTIONS[0]]}, "the id occurs twice"),
            ({"policy": PolicySpec(rule="squarecb", salt=SALT)}, "rule squarecb needs `gamma`"),
            ({"policy": PolicySpec(rule="uniform", salt="00")}, "salt must be 32 hexadecimal digits"),
            (
                {"policy": PolicySpec(rule="uniform", salt=SALT, caps=[Cap(attribute="fee", lambda_=1)])},
                'cap on "fee", an attribute that no action has',
            ),
            (
                {"policy": PolicySpec(rule="bagging", voters=2, salt=SALT)},
                "rule bagging takes 2 voters, the node lists 0",
            ),
            (
                {"calibration": HeldOut(contexts(4), [0, 1, 0, 1])},
                "held-out data of an action bundle needs `actions`",
            ),
            (
                {"calibration": HeldOut(contexts(4), [0, 1, 0, 1], [0, 1, 2, 6])},
                "actions must be 4 positions from 0 below 6",
            ),
        ],
    )
    def test_invalid_inputs_of_action_bundles_are_refused(
        self, tmp_path: Path, action_bundle: Trained, changes: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(BundleError) as error:
            self.build_action(tmp_path, action_bundle, **changes)
        assert message in str(error.value)
        assert list(tmp_path.iterdir()) == []

    @staticmethod
    def build_action(path: Path, trained: Trained, **changes: Any) -> None:
        settings: dict[str, Any] = {
            "name": "authorise",
            "model": trained.model,
            "schema": trained.schema,
            "actions": ACTIONS,
            "policy": PolicySpec(rule="uniform", salt=SALT),
            "training": contexts(300),
            "validation": contexts(300),
            "lineage": LINEAGE,
        }
        build_action_bundle(path / "b", **{**settings, **changes})


def test_categories_of_an_xgboost_model_are_used(tmp_path: Path) -> None:
    rows = contexts(800)
    types = ["q", "q", "c", "q"]
    names = [feature.name for feature in CONTEXT]
    data = xgboost.DMatrix(
        rows, labels_of(rows), feature_names=names, feature_types=types, enable_categorical=True
    )
    model = xgboost.train({"objective": "binary:logistic", "max_cat_to_onehot": 2, "nthread": 1}, data, 10)
    build(tmp_path / "b", model=model)
    out = verify(tmp_path / "b").score(rows)
    np.testing.assert_array_equal(out.margins, model.predict(data, output_margin=True))


def test_lineage_has_parameters_and_importance_if_they_exist() -> None:
    plain = describe_lineage(data_digest="sha256:aa", code_version="c")
    assert not {"parameters", "importance"} & plain.model_dump(mode="json").keys()
    own = describe_lineage(
        data_digest="sha256:aa", parameters={"max_depth": 4}, importance={"amount": 2.5}
    ).model_dump(mode="json")
    assert (own["parameters"], own["importance"]) == ({"max_depth": 4}, {"amount": 2.5})
    for wrong in (math.nan, -1.0):
        with pytest.raises(BundleError, match='importance of "amount" is'):
            describe_lineage(data_digest="sha256:aa", importance={"amount": wrong})


def test_lineage_names_data_code_and_libraries(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"abc")
    lineage = describe_lineage(tmp_path / "data", code_version="v1", metrics={"auc": 0.9})
    import hashlib

    inner = hashlib.sha256(b"abc").digest()
    assert lineage.data_digest == f"sha256:{hashlib.sha256(inner).hexdigest()}"
    assert lineage.library_versions["xgboost"] == xgboost.__version__
    assert lineage.run_id
    with pytest.raises(BundleError, match="no data files"):
        describe_lineage()


def test_golden_rows_contain_the_thresholds_of_the_model(score_bundle: Trained) -> None:
    """The golden cases of a bundle must reveal a comparison that is wrong only at equality."""
    golden = (score_bundle.path / "golden.bin").read_bytes()
    case = 4 * len(CONTEXT) + 8 + 8 + 4
    rows = np.stack(
        [np.frombuffer(golden, np.float32, len(CONTEXT), 28 + case * number) for number in range(512)]
    )
    trees = json.loads(bytes(score_bundle.model.save_raw("json")))["learner"]["gradient_booster"]["model"][
        "trees"
    ]
    thresholds = {
        (feature, np.float32(value))
        for tree in trees
        for feature, value, left in zip(
            tree["split_indices"], tree["split_conditions"], tree["left_children"], strict=True
        )
        if left != -1
    }
    hit = sum((column, row[column]) in thresholds for row in rows for column in (0, 1))
    assert hit > 50
    assert np.isnan(rows[0, 1:]).all()


@pytest.mark.parametrize(
    ("sensitive", "withheld"), [((), set()), (["amount", "country"], {0, 2}), ("*", {0, 1, 2, 3})]
)
def test_golden_cases_contain_no_training_value_of_a_sensitive_feature(
    tmp_path: Path, score_bundle: Trained, sensitive: Sequence[str], withheld: set[int]
) -> None:
    training = contexts(400)
    # Values that are not a threshold of the model, which was trained on other rows.
    random = np.random.default_rng(7)
    training[:, 0] = random.uniform(1, 40_000, 400).astype(np.float32)
    training[:, 1] = random.uniform(0, 23, 400).astype(np.float32)
    output = tmp_path / "bundle"
    build(output, model=score_bundle.model, training=training, sensitive=sensitive)
    golden = (output / "golden.bin").read_bytes()
    case = 4 * len(CONTEXT) + 8 + 8 + 4
    rows = np.stack(
        [np.frombuffer(golden, np.float32, len(CONTEXT), 28 + case * number) for number in range(512)]
    )
    for column in (0, 1):
        shared = np.isin(rows[:, column], training[:, column]).sum()
        assert (shared == 0) == (column in withheld), f"{shared} values of training rows in column {column}"
        # The replaced values must also reveal a comparison with the wrong sign.
        assert len(np.unique(rows[:, column])) > 20
    assert set(rows[~np.isnan(rows[:, 2]), 2]) == {0, 1, 2}, "every category must occur"
    assert verify(output).score(rows).scores.shape == (512,)


def test_a_sensitive_feature_must_be_in_the_schema(tmp_path: Path, score_bundle: Trained) -> None:
    with pytest.raises(BundleError, match='sensitive: "amuont" is no feature of the schema'):
        build(tmp_path / "bundle", model=score_bundle.model, sensitive=["amount", "amuont"])


def test_a_bundle_can_be_moved(tmp_path: Path, score_bundle: Trained) -> None:
    digest = score_bundle.bundle.digest
    named = tmp_path / digest.removeprefix("sha256:")
    shutil.copytree(score_bundle.path, named)
    assert verify(named).digest == digest
    other = tmp_path / ("0" * 64)
    shutil.copytree(score_bundle.path, other)
    with pytest.raises(BundleError, match=f"bundle is {digest}, sha256:{'0' * 64} was expected"):
        verify(other)


def test_a_bundle_may_have_flags_only(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = random.integers(0, 2, (400, 2)).astype(np.float32)
    features = [Feature(name="a", type="flag"), Feature(name="b", type="flag")]
    model = train(rows, rows[:, 0], ["a", "b"])
    build(tmp_path / "b", model=model, schema=SchemaFile(features=features), training=rows, validation=rows)
    assert verify(tmp_path / "b").score(rows).bands.max() <= 2
