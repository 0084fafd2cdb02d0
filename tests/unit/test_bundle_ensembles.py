"""Tests of bundles with several forests and of score maps, against numpy and the training library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xgboost
from pyarrow import parquet
from trained import BANDS, CONTEXT, CREATED, LINEAGE, Trained, contexts, labels_of, train

from scorer.bundle import (
    Bundle,
    Clip,
    HeldOut,
    MeanEnsemble,
    ReasonsFile,
    SchemaFile,
    ScoreMapFile,
    ScoreReference,
    SegmentCase,
    SigmoidMap,
    StackEnsemble,
    SwitchEnsemble,
    build_score_bundle,
    fit_score_map,
    inspect,
    revise,
    verify,
)
from scorer.bundle.graph import edges, program_graph
from scorer.bundle.score_map import mapped, remapped, share_difference
from scorer.bundle.statistics import distribution
from scorer.cli import main
from scorer.errors import BundleError
from scorer.explain.importance import importances
from scorer.explain.thresholds import ForestThresholds
from scorer.web.program_drawing import BOX_WIDTH, draw_program

NAMES = [feature.name for feature in CONTEXT]


@pytest.fixture(scope="module")
def models() -> list[Any]:
    """Three models of different rows and depths."""
    return [
        train(contexts(600, seed), labels_of(contexts(600, seed), seed), NAMES, max_depth=2 + seed)
        for seed in range(3)
    ]


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return contexts(700, 9)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["scorer", "bundle", *arguments])
    try:
        code = main()
    except SystemExit as stopped:
        code = stopped.code
    return int(code or 0)


def build(path: Path, models: list[Any], **changes: Any) -> Bundle:
    data = contexts(600)
    settings: dict[str, Any] = {
        "name": "fraud",
        "model": models[0],
        "members": models[1:],
        "schema": SchemaFile(features=CONTEXT),
        "bands": BANDS,
        "training": data[:400],
        "validation": data[400:],
        "lineage": LINEAGE,
        "created_at": CREATED,
        "golden_cases": 256,
    }
    build_score_bundle(path, **{**settings, **changes})
    return verify(path)


def predictions(models: list[Any], rows: np.ndarray) -> np.ndarray:
    """Return the probabilities that XGBoost computes, ``[models, n]``."""
    matrix = xgboost.DMatrix(rows, feature_names=NAMES)
    return np.stack([model.predict(matrix).astype(np.float64) for model in models])


def logit(p: np.ndarray) -> np.ndarray:
    return np.log(p / (1 - p))


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def test_a_mean_is_that_of_the_models(tmp_path: Path, models: list[Any], rows: np.ndarray) -> None:
    p = predictions(models, rows)
    bundle = build(tmp_path / "scores", models, ensemble=MeanEnsemble(weights=[2, 1, 1]))
    out = bundle.score(rows)
    np.testing.assert_allclose(out.scores, (2 * p[0] + p[1] + p[2]) / 4, atol=1e-12)
    np.testing.assert_array_equal(out.bands, np.searchsorted([0.5, 0.9], out.scores, side="right"))
    bundle = build(tmp_path / "logits", models, ensemble=MeanEnsemble(of="logits"))
    out = bundle.score(rows)
    np.testing.assert_allclose(out.scores, sigmoid(logit(p).mean(axis=0)), atol=1e-12)
    np.testing.assert_allclose(out.margins, logit(p).mean(axis=0), atol=1e-9)
    assert not bundle.explains
    # The margins in the golden cases are those of all three models.
    assert len(inspect(tmp_path / "logits").forests) == 3


def test_a_stack_is_a_logistic_regression(tmp_path: Path, models: list[Any], rows: np.ndarray) -> None:
    p = predictions(models, rows)
    stack = StackEnsemble(coefficients=[0.5, -0.25, 1.0], intercept=-0.5)
    bundle = build(tmp_path / "stack", models, ensemble=stack)
    expected = sigmoid(0.5 * logit(p[0]) - 0.25 * logit(p[1]) + logit(p[2]) - 0.5)
    np.testing.assert_allclose(bundle.score(rows).scores, expected, atol=1e-12)


def test_a_switch_gives_each_segment_its_model(tmp_path: Path, models: list[Any], rows: np.ndarray) -> None:
    p = predictions(models, rows)
    by_country = SwitchEnsemble(
        feature="country",
        cases=[SegmentCase(model=1, categories=["NL"]), SegmentCase(model=2, categories=["FR"])],
    )
    out = build(tmp_path / "country", models, ensemble=by_country).score(rows)
    chosen = np.select([rows[:, 2] == 0, rows[:, 2] == 2], [1, 2], 0)
    np.testing.assert_array_equal(out.scores, p[chosen, np.arange(len(rows))])
    by_hour = SwitchEnsemble(
        feature="hour",
        cases=[SegmentCase(model=0, end=6), SegmentCase(model=1, start=6, end=18)],
        default=2,
    )
    bundle = build(tmp_path / "hour", models, ensemble=by_hour)
    chosen = np.select([rows[:, 1] < 6, (rows[:, 1] >= 6) & (rows[:, 1] < 18)], [0, 1], 2)
    out = bundle.score(rows)
    np.testing.assert_array_equal(out.scores, p[chosen, np.arange(len(rows))])
    # Rows alone have the bits of rows together.
    alone = [bundle.score(row[None]) for row in rows[:50]]
    np.testing.assert_array_equal([one.scores[0] for one in alone], out.scores[:50])
    np.testing.assert_array_equal([one.margins[0] for one in alone], out.margins[:50])


def test_an_ensemble_is_calibrated_as_a_whole(tmp_path: Path, models: list[Any], rows: np.ndarray) -> None:
    from sklearn.isotonic import IsotonicRegression

    labels = labels_of(rows)
    bundle = build(
        tmp_path / "c", models, ensemble=MeanEnsemble(), calibration=HeldOut(data=rows, labels=labels)
    )
    mean = predictions(models, rows).mean(axis=0)
    fitted = IsotonicRegression(out_of_bounds="clip").fit(mean, labels)
    np.testing.assert_allclose(bundle.score(rows).scores, fitted.predict(mean), atol=1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ensemble": None}, "members and the ensemble belong together"),
        ({"ensemble": MeanEnsemble(weights=[1, 2])}, r"program node 6 \(mean\): 2 weights for 3 inputs"),
        ({"ensemble": StackEnsemble(coefficients=[1, 2])}, r"program node 6 \(stack\): 2 coefficients"),
        (
            {"ensemble": SwitchEnsemble(feature="country", cases=[SegmentCase(model=3, categories=["NL"])])},
            "model 1 is in no segment",
        ),
        (
            {
                "ensemble": SwitchEnsemble(
                    feature="country", cases=[SegmentCase(model=at, categories=["NL"]) for at in (1, 2, 3)]
                )
            },
            "there is no model 3, only 0 to 2",
        ),
        (
            {"ensemble": MeanEnsemble(), "calibration": SigmoidMap(slope=1, intercept=0)},
            "sigmoid takes the margin of one model",
        ),
        ({"ensemble": MeanEnsemble(), "reasons": ReasonsFile(features={})}, "no single forest explains"),
    ],
)
def test_ensembles_that_do_not_fit_are_refused(
    tmp_path: Path, models: list[Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BundleError, match=message):
        build(tmp_path / "bad", models, **changes)
    assert not (tmp_path / "bad").exists()


def test_a_fitted_map_gives_the_new_scores_the_old_distribution() -> None:
    random = np.random.default_rng(3)
    old = random.beta(0.5, 20, 20_000)
    new = random.beta(2, 5, 30_000) ** 2
    fitted = fit_score_map(new, old)
    assert fitted.x[0] == fitted.y[0] == 0.0
    assert fitted.x[-1] == fitted.y[-1] == 1.0
    assert share_difference(new, old) > 0.3
    assert share_difference(mapped(fitted, new), old) < 0.002
    # Thresholds in the tail keep their share as well, also for scores that the map was not fitted on.
    other = random.beta(2, 5, 300_000) ** 2
    for share in (0.1, 0.01, 0.002):
        threshold = np.quantile(old, 1 - share)
        assert (mapped(fitted, new) >= threshold).mean() == pytest.approx(share, rel=0.02)
        assert (mapped(fitted, other) >= threshold).mean() == pytest.approx(share, rel=0.5)


def test_a_map_of_scores_with_ties() -> None:
    new = np.repeat([0.1, 0.3, 0.7], [500, 300, 200])
    old = np.linspace(0.2, 0.8, 1000)
    fitted = fit_score_map(new, old)
    assert (np.diff(fitted.x) > 0).all()
    assert (np.diff(fitted.y) >= 0).all()
    # Each score gets the middle of the quantiles that it stands for.
    np.testing.assert_allclose(mapped(fitted, [0.1, 0.3, 0.7]), [0.35, 0.59, 0.74], atol=0.001)


@pytest.mark.parametrize(
    ("new", "old", "message"),
    [
        ([0.5] * 99, np.linspace(0, 1, 100), "99 scores of the new model"),
        (np.linspace(0, 1, 100), [0.5] * 100, "100 scores of the old model, at least 100 that differ"),
        ([np.nan] * 100, np.linspace(0, 1, 100), "a score of the new model is NaN"),
    ],
)
def test_samples_that_fit_no_map(new: Any, old: Any, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        fit_score_map(new, old)


def test_a_bundle_keeps_the_thresholds_of_an_older_model(
    tmp_path: Path, models: list[Any], score_bundle: Trained
) -> None:
    rows = contexts(4000, 5)
    old = score_bundle.bundle.score(rows).scores
    bundle = build(tmp_path / "new", models[:1], validation=rows, score_map=ScoreReference(old))
    scores = bundle.score(rows).scores
    inspection = inspect(tmp_path / "new")
    assert inspection.score_map is not None
    np.testing.assert_allclose(
        scores, mapped(inspection.score_map, predictions(models[:1], rows)[0]), atol=1e-12
    )
    assert share_difference(scores, old) < 0.05
    assert inspection.reference.validation.mean == pytest.approx(scores.mean())
    assert inspection.explains


def test_revisions_set_replace_and_remove_a_score_map(tmp_path: Path, models: list[Any]) -> None:
    rows = contexts(600)
    plain = build(tmp_path / "plain", models[:1])
    first, second = (ScoreMapFile(x=[0, 0.5, 1], y=[0, y, 1]) for y in (0.25, 0.75))
    revise(tmp_path / "plain", tmp_path / "first", score_map=first, created_at=CREATED)
    revise(tmp_path / "first", tmp_path / "second", score_map=second, created_at=CREATED)
    revise(tmp_path / "second", tmp_path / "third", remove_score_map=True, created_at=CREATED)
    scores = plain.score(rows).scores
    for name, score_map in (("first", first), ("second", second), ("third", None)):
        expected = scores if score_map is None else mapped(score_map, scores)
        bundle = verify(tmp_path / name)
        np.testing.assert_allclose(bundle.score(rows).scores, expected, atol=1e-12)
        inspection = inspect(tmp_path / name)
        assert inspection.score_map == score_map
        exact = distribution(expected[:400])
        reference = inspection.reference.training
        assert reference.count == 400
        np.testing.assert_allclose(reference.quantiles, exact.quantiles, atol=0.01)
        assert reference.mean == pytest.approx(exact.mean, abs=0.01)
        counts, _ = np.histogram(expected[:400], bins=reference.edges)
        np.testing.assert_array_equal(counts, reference.counts)
    assert "score_map.json" not in {file.name for file in (tmp_path / "third").iterdir()}
    forests = {(tmp_path / name / "forest.bin").read_bytes() for name in ("plain", "first", "third")}
    assert len(forests) == 1
    with pytest.raises(BundleError, match=r"has no score_map\.json to remove"):
        revise(tmp_path / "third", tmp_path / "x", remove_score_map=True)
    with pytest.raises(BundleError, match="a score map is given and to be removed"):
        revise(tmp_path / "second", tmp_path / "x", score_map=first, remove_score_map=True)
    with pytest.raises(BundleError, match="knot 1 goes back"):
        revise(tmp_path / "plain", tmp_path / "x", score_map=ScoreMapFile(x=[0, 0], y=[0, 1]))


def test_reference_statistics_with_a_map_that_is_flat_somewhere() -> None:
    scores = np.random.default_rng(2).random(5000)
    flat = ScoreMapFile(x=[0, 0.3, 0.6, 1], y=[0, 0.2, 0.2, 1])
    found = remapped(distribution(scores), None, flat)
    expected = mapped(flat, scores)
    assert sum(found.counts) == found.count == 5000
    assert (np.diff(found.edges) > 0).all()
    counts, _ = np.histogram(expected, bins=found.edges)
    np.testing.assert_array_equal(counts, found.counts)
    assert found.mean == pytest.approx(expected.mean(), abs=0.005)
    # Scores that became one point come back as its middle.
    back = remapped(found, flat, None)
    assert sum(back.counts) == 5000
    assert back.mean == pytest.approx(0.5, abs=0.05)


def test_the_command_line_builds_an_ensemble_with_a_map(
    tmp_path: Path,
    models: list[Any],
    score_bundle: Trained,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, model in zip(("a", "b", "c"), models, strict=True):
        model.save_model(tmp_path / f"{name}.ubj")
    rows = contexts(500)
    names = [None if np.isnan(code) else CONTEXT[2].categories[int(code)] for code in rows[:, 2]]
    table = pa.table({**{n: rows[:, at] for at, n in enumerate(NAMES) if n != "country"}, "country": names})
    parquet.write_table(table, tmp_path / "data.parquet")
    old = score_bundle.bundle.score(rows).scores
    parquet.write_table(pa.table({"old": old}), tmp_path / "old.parquet")
    features = "\n".join(
        f"[[features]]\n{text}"
        for text in (
            'name = "amount"\nmissing = "refuse"\nminimum = 0\nmaximum = 50000',
            'name = "hour"',
            'name = "country"\ntype = "category"\ncategories = ["NL", "DE", "FR"]',
            'name = "night"\ntype = "flag"',
        )
    )
    spec = f"""
[bundle]
name = "fraud"
kind = "score"
model = "a.ubj"
members = ["b.ubj", "c.ubj"]
golden_cases = 256

[data]
training = "data.parquet"
validation = "data.parquet"

[ensemble]
kind = "switch"
feature = "amount"
default = 0
cases = [{{ model = 1, from = 10, to = 20 }}, {{ model = 2, from = 20 }}]

[score_map]
scores = "old.parquet"
column = "old"

{features}

[[thresholds]]
from = 0.0
label = "approve"
"""
    (tmp_path / "fraud.toml").write_text(spec)
    assert run(monkeypatch, "build", str(tmp_path / "fraud.toml"), "-o", str(tmp_path / "out")) == 0
    assert "no single forest explains the score of an ensemble" in capsys.readouterr().err
    p = predictions(models, rows)
    chosen = np.select([(rows[:, 0] >= 10) & (rows[:, 0] < 20), rows[:, 0] >= 20], [1, 2], 0)
    expected = p[chosen, np.arange(len(rows))]
    scores = verify(tmp_path / "out").score(rows).scores
    np.testing.assert_allclose(scores, mapped(fit_score_map(expected, old), expected), atol=1e-9)
    assert run(monkeypatch, "inspect", str(tmp_path / "out")) == 0
    shown = capsys.readouterr().out
    assert "switch > scoremap > threshold" in shown
    assert "score map" in shown
    # The same with the bundle of the older model, and a map that a command fits.
    text = spec.replace('scores = "old.parquet"\ncolumn = "old"', f'bundle = "{score_bundle.path}"')
    (tmp_path / "other.toml").write_text(text)
    assert run(monkeypatch, "build", str(tmp_path / "other.toml"), "-o", str(tmp_path / "other")) == 0
    np.testing.assert_array_equal(verify(tmp_path / "other").score(rows).scores, scores)
    parquet.write_table(pa.table({"old": expected}), tmp_path / "new.parquet")
    command = ["fit-map", str(tmp_path / "new.parquet"), str(tmp_path / "old.parquet")]
    capsys.readouterr()
    assert run(monkeypatch, *command, "--column", "old", "-o", str(tmp_path / "map.json"), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["after"] < shown["before"]
    live, out = str(tmp_path / "out"), str(tmp_path / "revised")
    assert run(monkeypatch, "revise", live, "--score-map", str(tmp_path / "map.json"), "-o", out) == 0
    np.testing.assert_allclose(verify(out).score(rows).scores, scores, atol=1e-9)
    assert run(monkeypatch, *command, "--column", "no", "-o", str(tmp_path / "map.json")) == 1
    assert 'column "no"' in capsys.readouterr().err


def test_the_graph_of_a_program(
    tmp_path: Path, models: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = SwitchEnsemble(
        feature="country",
        cases=[SegmentCase(model=1, categories=["NL", "DE"]), SegmentCase(model=2, categories=["FR"])],
    )
    build(
        tmp_path / "g",
        models,
        ensemble=segments,
        steps=[Clip(feature="amount", high=49_999)],
        score_map=ScoreMapFile(x=[0, 1], y=[0, 0.5]),
    )
    assert run(monkeypatch, "graph", str(tmp_path / "g"), "--format", "json") == 0
    nodes = json.loads(capsys.readouterr().out)
    kinds = [node["kind"] for node in nodes]
    assert kinds == ["request", "transform", *["forest", "link"] * 3, "switch", "scoremap", "threshold"]
    switch = nodes[8]
    assert switch["reads"] == ["inputs", "probability-01", "probability-02", "probability"]
    assert switch["settings"] == ("by country: NL, DE probability-01; FR probability-02; else probability")
    assert [node["type"] for node in nodes[:3]] == ["row", "row", "margins"]
    assert run(monkeypatch, "graph", str(tmp_path / "g"), "--format", "dot") == 0
    dot = capsys.readouterr().out
    assert dot.startswith("digraph program {")
    assert 'n9 -> n10 [label="mapped (score)"]' in dot
    assert run(monkeypatch, "graph", str(tmp_path / "g")) == 0
    assert "switch" in capsys.readouterr().out
    # The drawing puts every node to the right of those that it reads, and no two into one place.
    inspection = inspect(tmp_path / "g")
    graph = program_graph(inspection.manifest.program, len(CONTEXT))
    drawn = draw_program(graph)
    place = {one.node.number: (one.x, one.y) for one in drawn.nodes}
    assert len(set(place.values())) == len(graph)
    for first, second in edges(graph):
        assert place[first.number][0] + BOX_WIDTH < place[second.number][0]
    assert all(0 < x <= drawn.width - BOX_WIDTH for x, _ in place.values())
    assert len(drawn.paths) == len(list(edges(graph)))


def test_an_ensemble_is_explained_by_its_scores(tmp_path: Path, models: list[Any]) -> None:
    bundle = build(tmp_path / "m", models, ensemble=MeanEnsemble())
    with pytest.raises(BundleError, match=r"no covers\.bin"):
        bundle.explain(contexts(1)[0])
    found = importances(tmp_path / "m", bundle.columns or NAMES, {}, None, 10, 0)
    counts = [model.get_score(importance_type="weight") for model in models]
    assert {one.feature: one.splits for one in found} == {
        name: sum(int(one.get(name, 0)) for one in counts) for name in NAMES
    }
    # The thresholds of all forests and the ends of a switch's ranges are values at which the score changes.
    segments = SwitchEnsemble(
        feature="amount", cases=[SegmentCase(model=1, start=15.5, end=21), SegmentCase(model=2, start=21)]
    )
    bundle = build(tmp_path / "s", models, ensemble=segments)
    row = contexts(1)[0]
    ends = ForestThresholds(tmp_path / "s").boundaries(0)
    assert {15.5, 21.0} <= set(ends.tolist())
    every = np.tile(row, (3000, 1))
    every[:, 0] = np.linspace(0, 300, 3000, dtype=np.float32)
    scores = bundle.score(every).scores
    places = np.searchsorted(ends, every[:, 0], side="right")
    changes = np.flatnonzero(np.diff(scores))
    assert len(changes) > 5
    assert (np.diff(places)[changes] > 0).all()
