"""Global explanations, held against XGBoost and against naive computations of the definitions."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xgboost as xgb
from bundles import CREATED, FEATURES, score_bundle_of
from trained import BANDS, CONTEXT, LINEAGE, Trained

from scorer.batch.inputs import SourceOptions
from scorer.bundle import Bundle, Feature, SchemaFile, build_score_bundle
from scorer.errors import BatchError, BundleError
from scorer.explain.document import ExplanationSettings, GlobalExplanation
from scorer.explain.quantity import ExplainedQuantity
from scorer.explain.running import explain_bundle
from scorer.explain.surrogate import leaf_of

NOW = datetime(2026, 2, 1, tzinfo=UTC)
SMALL = ExplanationSettings(rows=150, contributions=80, points=6, interaction_rows=12, resamples=50, seed=4)


def table(rows: np.ndarray) -> dict[str, Any]:
    """Return encoded rows of `CONTEXT` as columns that a user would have."""
    countries = CONTEXT[2].categories
    return {
        "amount": rows[:, 0].astype(float),
        "hour": [None if np.isnan(v) else float(v) for v in rows[:, 1]],
        "country": [None if np.isnan(v) else countries[int(v)] for v in rows[:, 2]],
        "night": rows[:, 3].astype(bool),
    }


def write(path: Path, rows: np.ndarray, **replaced: Any) -> SourceOptions:
    pq.write_table(pa.table({**table(rows), **replaced}), path)
    return SourceOptions((path,))


def explain(bundle: Trained, source: SourceOptions, **settings: Any) -> GlobalExplanation:
    limits = SMALL.model_copy(update=settings)
    return explain_bundle(bundle.path, source, limits, now=lambda: NOW)


@pytest.fixture(scope="module")
def rows(score_bundle: Trained) -> np.ndarray:
    return score_bundle.rows[2000:2100]


@pytest.fixture(scope="module")
def explained(
    score_bundle: Trained, rows: np.ndarray, tmp_path_factory: pytest.TempPathFactory
) -> GlobalExplanation:
    return explain(
        score_bundle, write(tmp_path_factory.mktemp("rows") / "week.parquet", rows), contributions=100
    )


def margins(bundle: Trained, rows: np.ndarray) -> np.ndarray:
    names = [feature.name for feature in CONTEXT]
    return bundle.model.predict(xgb.DMatrix(rows, feature_names=names), output_margin=True).astype(float)


def curve(explained: GlobalExplanation, name: str) -> Any:
    return next(one for one in explained.dependence if one.feature == name)


def test_importance_is_that_of_xgboost(
    score_bundle: Trained, rows: np.ndarray, explained: GlobalExplanation
) -> None:
    names = [feature.name for feature in CONTEXT]
    matrix = xgb.DMatrix(rows, feature_names=names)
    expected = np.abs(score_bundle.model.predict(matrix, pred_contribs=True)[:, :-1]).mean(axis=0)
    found = {one.feature: one for one in explained.importance}
    assert [found[name].mean for name in names] == pytest.approx(expected, abs=1e-5)
    counts = score_bundle.model.get_score(importance_type="weight")
    covers = score_bundle.model.get_score(importance_type="total_cover")
    for name in names:
        assert found[name].splits == counts.get(name, 0)
        assert found[name].cover == pytest.approx(covers.get(name, 0), rel=1e-4)
        assert found[name].low <= found[name].mean <= found[name].high
        assert found[name].low < found[name].high
    assert [one.mean for one in explained.importance] == sorted(one.mean for one in explained.importance)[
        ::-1
    ]
    assert explained.explained == 100


def test_partial_dependence_and_individual_curves_are_averages_of_the_bundle(
    score_bundle: Trained, rows: np.ndarray, explained: GlobalExplanation
) -> None:
    bundle = score_bundle.bundle
    for place, feature in enumerate(CONTEXT):
        for point in curve(explained, feature.name).points:
            changed = rows.copy()
            changed[:, place] = np.nan if point.value is None else point.value
            expected = margins(score_bundle, changed)
            assert point.mean == pytest.approx(expected.mean(), abs=1e-5)
            quantiles = np.quantile(expected, (0.1, 0.5, 0.9))
            assert (point.low, point.median, point.high) == pytest.approx(quantiles, abs=1e-5)
            assert point.score == pytest.approx(bundle.score(changed).scores.mean())
    assert [one.label for one in curve(explained, "country").points] == ["NL", "DE", "FR", "(missing)"]
    assert [one.label for one in curve(explained, "night").points] == ["no", "yes"]
    for one in explained.dependence:
        assert sum(point.rows for point in one.points) == len(rows)


def test_accumulated_local_effects_are_those_of_the_definition(
    score_bundle: Trained, rows: np.ndarray, explained: GlobalExplanation
) -> None:
    for place, name in ((0, "amount"), (1, "hour"), (3, "night")):
        effects = curve(explained, name).effects
        known = rows[~np.isnan(rows[:, place])]
        steps, counts = [], []
        for low, high in pairwise([one.value for one in effects]):
            first = low == effects[0].value
            own = known[:, place].astype(float)
            inside = known[((own > low) | (first & (own == low))) & (own <= high)]
            above, below = inside.copy(), inside.copy()
            above[:, place], below[:, place] = high, low
            steps.append(float((margins(score_bundle, above) - margins(score_bundle, below)).mean()))
            counts.append(len(inside))
        sums = np.cumsum([0.0, *steps])
        mean = float(((sums[1:] + sums[:-1]) / 2) @ counts) / sum(counts)
        assert [one.effect for one in effects] == pytest.approx(sums - mean, abs=1e-4)
        assert [one.rows for one in effects] == [0, *counts]
    assert curve(explained, "country").effects == []


def test_interactions_are_those_of_the_definition(
    score_bundle: Trained, explained: GlobalExplanation, tmp_path: Path, rows: np.ndarray
) -> None:
    few = rows[:9]
    found = explain(score_bundle, write(tmp_path / "few.parquet", few)).interactions
    assert len(found) == 6
    names = [feature.name for feature in CONTEXT]

    def mean(columns: tuple[int, ...]) -> np.ndarray:
        values = []
        for row in few:
            changed = few.copy()
            changed[:, columns] = row[list(columns)]
            values.append(margins(score_bundle, changed).mean())
        return np.array(values) - np.mean(values)

    for one in found:
        first, second = names.index(one.first), names.index(one.second)
        joint = mean((first, second))
        rest = joint - mean((first,)) - mean((second,))
        assert one.strength == pytest.approx(np.sqrt((rest**2).mean()), abs=1e-5)
        assert one.share == pytest.approx(np.sqrt((rest**2).sum() / (joint**2).sum()), abs=1e-3)
    assert [one.strength for one in found] == sorted((one.strength for one in found), reverse=True)


def stumps(path: Path, depth: int) -> Path:
    """Build a bundle of x0 + x1 x2, with trees of the given depth."""
    data = np.random.default_rng(2).normal(size=(800, 3)).astype(np.float32)
    names = ["a", "b", "c"]
    target = data[:, 0] + 2 * data[:, 1] * data[:, 2]
    settings = {"max_depth": depth, "nthread": 1, "objective": "binary:logistic", "seed": 1}
    labels = (target > 0).astype(np.float32)
    model = xgb.train(settings, xgb.DMatrix(data, labels, feature_names=names), 12)
    build_score_bundle(
        path,
        name="sums",
        model=model,
        schema=SchemaFile(features=[Feature(name=name) for name in names]),
        bands=BANDS,
        training=data[:500],
        validation=data[500:],
        lineage=LINEAGE,
        golden_cases=256,
        created_at=CREATED,
    )
    pq.write_table(
        pa.table(dict(zip(names, data[:100].astype(float).T, strict=True))), path.with_suffix(".parquet")
    )
    return path


def test_features_of_an_additive_model_do_not_interact(tmp_path: Path) -> None:
    path = stumps(tmp_path / "stumps", 1)
    found = explain_bundle(path, SourceOptions((path.with_suffix(".parquet"),)), SMALL)
    assert found.interactions
    assert {(one.strength, one.share) for one in found.interactions} == {(0.0, 0.0)}
    deep = stumps(tmp_path / "deep", 4)
    strongest = explain_bundle(deep, SourceOptions((deep.with_suffix(".parquet"),)), SMALL).interactions[0]
    assert {strongest.first, strongest.second} == {"b", "c"}
    assert strongest.share > 0.5


def test_surrogate_has_the_fidelity_that_it_states(
    score_bundle: Trained, explained: GlobalExplanation
) -> None:
    tree = explained.surrogate
    assert tree.fitted + tree.tested == 100
    assert tree.tested == 33
    other = score_bundle.rows[2200:2900]
    nodes = tree.nodes
    leaves = leaf_of(nodes, CONTEXT, other)
    assert all(nodes[leaf].feature is None for leaf in leaves)
    predicted = np.array([nodes[leaf].value for leaf in leaves])
    truth = margins(score_bundle, other)
    share = 1 - ((truth - predicted) ** 2).mean() / truth.var()
    assert tree.r_squared == pytest.approx(share, abs=0.25)
    assert share > 0.4
    bands = [score_bundle.bundle.labels[band] for band in score_bundle.bundle.score(other).bands]
    same = np.mean([nodes[leaf].label == band for leaf, band in zip(leaves, bands, strict=True)])
    assert tree.agreement == pytest.approx(same, abs=0.2)
    for node in nodes:
        if node.left is not None and node.right is not None:
            assert node.rows == nodes[node.left].rows + nodes[node.right].rows
            assert nodes[node.left].rows >= 5


def test_first_split_of_the_surrogate_is_the_best_one(score_bundle: Trained, tmp_path: Path) -> None:
    rows = score_bundle.rows[:29]  # too few to keep some for the fidelity
    found = explain(score_bundle, write(tmp_path / "few.parquet", rows), depth=1).surrogate
    values = margins(score_bundle, rows)
    best = np.inf
    for place, feature in enumerate(CONTEXT):
        own = rows[:, place]
        for value in np.unique(own[~np.isnan(own)]):
            for missing_left in (False, True):
                left = own == value if feature.type == "category" else own < value
                left |= np.isnan(own) & (missing_left and feature.type != "category")
                if min(left.sum(), (~left).sum()) >= 5:
                    error = ((values[left] - values[left].mean()) ** 2).sum()
                    best = min(best, error + ((values[~left] - values[~left].mean()) ** 2).sum())
    predicted = np.array([found.nodes[leaf].value for leaf in leaf_of(found.nodes, CONTEXT, rows)])
    assert ((values - predicted) ** 2).sum() == pytest.approx(best, rel=1e-5)
    assert (found.tested, found.r_squared, found.agreement) == (0, None, None)


def test_actions_are_explained_one_at_a_time(action_bundle: Trained, tmp_path: Path) -> None:
    source = write(tmp_path / "rows.parquet", action_bundle.rows[:60])
    name = action_bundle.bundle.actions[4]
    found = explain_bundle(action_bundle.path, source, SMALL, action=name, now=lambda: NOW)
    assert (found.kind, found.quantity, found.action) == ("action", "expected_reward", name)
    changed = action_bundle.rows[:60].copy()
    point = curve(found, "amount").points[-1]
    changed[:, 0] = point.value
    assert point.mean == pytest.approx(action_bundle.bundle.evaluate(changed)[1][:, 4].mean())
    assert point.score is None
    assert {"three_ds", "exemption"} < {one.feature for one in found.importance}
    assert found.surrogate.agreement is None
    with pytest.raises(BundleError, match='action "none" is not in the catalogue'):
        explain_bundle(action_bundle.path, source, SMALL, action="none")


def test_score_bundle_has_no_actions(score_bundle: Trained) -> None:
    with pytest.raises(BundleError, match="is a score bundle and has no actions"):
        ExplainedQuantity(score_bundle.bundle, "challenge")


def test_bundle_without_covers_is_explained_without_contributions(
    bare_bundle: Trained, tmp_path: Path
) -> None:
    found = explain(bare_bundle, write(tmp_path / "rows.parquet", bare_bundle.rows[:40]))
    assert found.expectation is None
    assert found.explained == 0
    assert {one.mean for one in found.importance} == {None}
    assert [one.splits for one in found.importance] == sorted(one.splits for one in found.importance)[::-1]
    assert "has no covers.bin" in found.notes[0]
    assert found.dependence


def test_same_seed_gives_the_same_document_and_another_seed_another_sample(
    score_bundle: Trained, tmp_path: Path
) -> None:
    source = write(tmp_path / "rows.parquet", score_bundle.rows)
    first, again, other = (explain(score_bundle, source, rows=60, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert (first.data.seen, first.data.used) == (3000, 60)
    assert first.data.digest != other.data.digest
    text = first.model_dump_json()
    assert GlobalExplanation.model_validate_json(text) == first
    assert str(tmp_path) not in text


def test_sample_is_uniform_over_the_whole_input(score_bundle: Trained, tmp_path: Path) -> None:
    rows = np.repeat(score_bundle.rows[:1], 20_000, axis=0)
    rows[:, 0] = np.arange(20_000)
    found = explain(
        score_bundle, write(tmp_path / "rows.parquet", rows), rows=2000, interacting=0, features=1
    )
    points = next(one for one in found.dependence if one.feature == "amount").points
    values = [one.value for one in points]
    assert values == pytest.approx(np.linspace(0, 20_000, 6), abs=1500)


def test_rows_that_the_schema_rejects_are_counted(score_bundle: Trained, tmp_path: Path) -> None:
    rows = score_bundle.rows[:50].copy()
    amounts = rows[:, 0].astype(float).tolist()
    amounts[3], amounts[7], amounts[30] = -1.0, None, 90_000.0
    found = explain(score_bundle, write(tmp_path / "rows.parquet", rows, amount=amounts))
    assert (found.data.seen, found.data.refused, found.data.used) == (50, 3, 47)
    source = write(tmp_path / "bad.parquet", rows, amount=[-1.0] * 50)
    with pytest.raises(BundleError, match=r"accepts none of its 50 rows; the first reason is: .*amount"):
        explain(score_bundle, source)


def test_missing_column_is_named(score_bundle: Trained, tmp_path: Path) -> None:
    columns = table(score_bundle.rows[:5])
    del columns["hour"]
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    with pytest.raises(BatchError, match=r"feature .hour.: .* has no such column"):
        explain(score_bundle, SourceOptions((tmp_path / "rows.parquet",)))


def test_input_without_rows_is_refused(score_bundle: Trained, tmp_path: Path) -> None:
    source = write(tmp_path / "rows.parquet", score_bundle.rows[:0])
    with pytest.raises(BundleError, match="accepts none of its 0 rows; it has no rows"):
        explain(score_bundle, source)


def test_one_row(score_bundle: Trained, tmp_path: Path) -> None:
    found = explain(score_bundle, write(tmp_path / "rows.parquet", score_bundle.rows[:1]))
    assert found.data.used == 1
    for one in found.importance:
        assert one.low == one.mean == one.high
    for curve in found.dependence:
        assert len(curve.points) == 1
        assert curve.effects == []
    assert {(one.strength, one.share) for one in found.interactions} == {(0.0, 0.0)}
    assert len(found.surrogate.nodes) == 1
    assert found.surrogate.r_squared is None
    assert any("one row" in note for note in found.notes)


def test_constant_features_have_flat_curves(score_bundle: Trained, tmp_path: Path) -> None:
    rows = score_bundle.rows[:40].copy()
    rows[:, 1], rows[:, 2] = 5, np.nan
    found = explain(score_bundle, write(tmp_path / "rows.parquet", rows))
    assert [point.label for point in curve(found, "hour").points] == ["5"]
    assert curve(found, "hour").effects == []
    assert [point.label for point in curve(found, "country").points] == ["(missing)"]
    for one in found.interactions:
        if {one.first, one.second} & {"hour", "country"}:
            assert one.strength == 0


def test_features_without_splits_have_no_curves(tmp_path: Path) -> None:
    features = [Feature(name=name) for name in (*FEATURES, "copy")]
    path = tmp_path / "wide"
    score_bundle_of(path, features)
    bundle = Bundle.load(path)
    data = np.tile(np.arange(30, dtype=float), (5, 1))
    pq.write_table(
        pa.table(dict(zip([one.name for one in features], data, strict=True))), tmp_path / "rows.parquet"
    )
    found = explain_bundle(path, SourceOptions((tmp_path / "rows.parquet",)), SMALL)
    unused = {one.feature for one in found.importance if not one.splits}
    assert unused
    assert not unused & {one.feature for one in found.dependence}
    assert {one.mean for one in found.importance if one.feature in unused} == {0.0}
    assert bundle.digest == found.bundle


def test_sample_that_does_not_fit_in_memory_is_refused(tmp_path: Path) -> None:
    features = [Feature(name=f"f{at}") for at in range(400)]
    path = tmp_path / "wide"
    score_bundle_of(path, features)
    with pytest.raises(BundleError, match="use at most 83,886 rows"):
        explain_bundle(
            path, SourceOptions((tmp_path / "rows.parquet",)), SMALL.model_copy(update={"rows": 100_000})
        )


def test_progress_reports_every_step(score_bundle: Trained, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    source = write(tmp_path / "rows.parquet", score_bundle.rows[:30])
    explain_bundle(score_bundle.path, source, SMALL, progress=lambda *step: seen.append(step))
    last = {name: (done, total) for name, done, total in seen}
    assert last == {
        "reading": (30, 30),
        "contributions": (30, 30),
        "curves": (4, 4),
        "interactions": (10, 10),
    }
