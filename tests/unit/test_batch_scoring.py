"""Tests of the core of batch scoring: the bits of the library, refused rows, roles of columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from trained import ACTIONS, CONTEXT, Trained, contexts

from scorer.batch import BatchColumns, BatchScorer
from scorer.errors import BatchError

CHECKPOINT = "action.authorise"
SELECT = BatchColumns(id="id", checkpoint=CHECKPOINT)


def table(rows: np.ndarray, **more: Any) -> pa.RecordBatch:
    """Columns as users have them: text for categories, booleans for flags, null for a missing value."""
    columns: dict[str, Any] = {}
    for at, feature in enumerate(CONTEXT):
        values = rows[:, at]
        missing = np.isnan(values)
        if feature.type == "category":
            names = [
                None if gone else feature.categories[int(code)]
                for code, gone in zip(values, missing, strict=True)
            ]
            columns[feature.name] = pa.array(names, pa.string())
        elif feature.type == "flag":
            columns[feature.name] = pa.array(values == 1)
        else:
            columns[feature.name] = pa.array(values.astype(np.float64), mask=missing)
    columns["id"] = pa.array([f"order-{at}" for at in range(len(rows))])
    return pa.record_batch({**columns, **more})


def scored(trained: Trained, batch: pa.RecordBatch, columns: BatchColumns) -> pa.RecordBatch:
    scorer = BatchScorer.load(trained.path, columns)
    scorer.check(batch.schema, "the table")
    result = scorer.score(batch)
    assert result.schema == scorer.output_schema(batch.schema)
    return result


def same_bits(one: Any, other: Any) -> bool:
    return np.array_equal(np.asarray(one).view(np.uint64), np.asarray(other).view(np.uint64))


# Rows in several blocks of the engine, with a last one that is not full, and fewer rows than a block.
@pytest.mark.parametrize("count", [1, 7, 64, 65, 1000])
def test_scores_have_the_bits_of_the_library(score_bundle: Trained, count: int) -> None:
    rows = contexts(count, seed=3)
    got = scored(score_bundle, table(rows), BatchColumns(keep=("id",)))
    expected = score_bundle.bundle.score(rows)
    assert got.schema.names == ["id", "margin", "score", "decision"]
    assert same_bits(got["margin"], expected.margins)
    assert same_bits(got["score"], expected.scores)
    assert got["decision"].to_pylist() == [score_bundle.bundle.labels[band] for band in expected.bands]
    assert got["id"].to_pylist() == [f"order-{at}" for at in range(count)]


def test_a_slice_of_a_batch_and_an_empty_batch(score_bundle: Trained) -> None:
    rows = contexts(300, seed=4)
    whole = scored(score_bundle, table(rows), BatchColumns(keep=("id",)))
    part = scored(score_bundle, table(rows).slice(101, 150), BatchColumns(keep=("id",)))
    assert part.equals(whole.slice(101, 150))
    assert scored(score_bundle, table(rows[:0]), BatchColumns()).num_rows == 0


@pytest.mark.parametrize("count", [1, 64, 130])
def test_actions_have_the_bits_of_the_library(action_bundle: Trained, count: int) -> None:
    rows = contexts(count, seed=5)
    got = scored(action_bundle, table(rows), replace(SELECT, pmf=True))
    assert got.schema.names == ["action", "propensity", "expected_reward", "pmf"]
    expected = [
        action_bundle.bundle.select(row, checkpoint=CHECKPOINT, decision_id=f"order-{at}")
        for at, row in enumerate(rows)
    ]
    assert got["action"].to_pylist() == [one.action for one in expected]
    assert same_bits(got["propensity"], [one.propensity for one in expected])
    assert same_bits(got["expected_reward"], [one.expected_reward for one in expected])
    assert same_bits(got["pmf"].flatten(), np.concatenate([one.pmf for one in expected]))
    assert len(set(got["action"].to_pylist())) > (count > 1), "the draw depends on the id"


def test_integers_and_dictionaries_are_ids(action_bundle: Trained) -> None:
    rows = contexts(40, seed=6)
    numbers = table(rows, id=pa.array(range(40)))
    texts = table(rows, id=pa.array([str(at) for at in range(40)]).dictionary_encode())
    assert scored(action_bundle, numbers, SELECT) == scored(action_bundle, texts, SELECT)


def test_eligible_actions_as_ids_and_as_booleans(action_bundle: Trained) -> None:
    rows = contexts(200, seed=7)
    random = np.random.default_rng(8)
    masks = random.random((200, len(ACTIONS))) < 0.4
    masks[np.arange(200), random.integers(0, len(ACTIONS), 200)] = True
    masks[50] = True
    flags: list[Any] = masks.tolist()
    ids: list[Any] = [[ACTIONS[at].id for at in np.flatnonzero(mask)] for mask in masks]
    flags[50] = ids[50] = None
    columns = replace(SELECT, eligible="may", pmf=True)
    by_flag = scored(action_bundle, table(rows, may=pa.array(flags)), columns)
    for kind in (pa.list_(pa.string()), pa.large_list(pa.string())):
        assert scored(action_bundle, table(rows, may=pa.array(ids, kind)), columns) == by_flag
    pmf, _ = action_bundle.bundle.evaluate(rows, eligible=masks)
    assert same_bits(by_flag["pmf"].flatten(), pmf.ravel())
    sliced = table(rows, may=pa.array(ids)).slice(30, 60)
    assert scored(action_bundle, sliced, columns) == by_flag.slice(30, 60)


def test_refused_rows_are_null_with_their_reason(score_bundle: Trained) -> None:
    rows = contexts(200, seed=9)
    rows[3, 0], rows[64, 0], rows[199, 1] = -1.0, np.nan, 24.0
    got = scored(score_bundle, table(rows), BatchColumns(bad_rows="null"))
    reasons = got["problem"].to_pylist()
    assert {at for at, reason in enumerate(reasons) if reason} == {3, 64, 199}
    assert 'feature "amount": the value is below the allowed minimum 0' in reasons[3]
    assert 'feature "amount": missing, and the schema refuses missing values' in reasons[64]
    assert 'feature "hour": the value is above the allowed maximum 23' in reasons[199]
    for name in ("margin", "score", "decision"):
        assert [at for at, value in enumerate(got[name].to_pylist()) if value is None] == [3, 64, 199]
    good = [at for at in range(200) if at not in {3, 64, 199}]
    assert same_bits(got["score"].take(good), score_bundle.bundle.score(rows[good]).scores)


def test_a_refused_row_ends_the_run_with_its_number(score_bundle: Trained) -> None:
    rows = contexts(100, seed=9)
    rows[40, 0] = rows[70, 0] = 1e30
    scorer = BatchScorer.load(score_bundle.path)
    with pytest.raises(
        BatchError, match=r'^row 1,040: feature "amount": the value is above .*--bad-rows null'
    ):
        scorer.score(table(rows), first_row=1000)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"id": [None, "a", "b"]}, 'id "id": an id is 1 to 80 printable ASCII characters'),
        ({"id": ["", "a", "b"]}, 'id "id": an id is 1 to 80'),
        ({"id": ["a\n", "a", "b"]}, 'id "id": an id is 1 to 80'),
        ({"id": ["é", "a", "b"]}, 'id "id": an id is 1 to 80'),
        ({"id": ["x" * 81, "a", "x" * 80]}, 'id "id": an id is 1 to 80'),
        ({"may": [["3ds=nonsense"], None, None]}, 'action "3ds=nonsense" is not in the catalogue'),
        ({"may": [[], None, None]}, "no action is eligible"),
        ({"may": [[True], [True] * 6, [True] * 6]}, "one boolean per action is needed, 6 for this bundle"),
        ({"may": [[False] * 6, [True] * 6, None]}, "no action is eligible"),
    ],
)
def test_refused_decisions(action_bundle: Trained, more: dict[str, Any], reason: str) -> None:
    columns = replace(SELECT, eligible="may" if "may" in more else None, bad_rows="null", pmf=True)
    kinds = {"may": pa.list_(pa.string()) if "3ds" in reason or more.get("may", [1])[0] == [] else None}
    given = {name: pa.array(values, kinds.get(name)) for name, values in more.items()}
    got = scored(action_bundle, table(contexts(3, seed=1), **given), columns)
    assert reason in got["problem"][0].as_py()
    assert got["problem"].to_pylist()[1:] == [None, None]
    for name in ("action", "propensity", "expected_reward", "pmf"):
        assert [value is None for value in got[name].to_pylist()] == [True, False, False]


@pytest.mark.parametrize(
    ("kind", "columns", "reason"),
    [
        (
            "action",
            BatchColumns(checkpoint="c"),
            "an action is drawn by checkpoint and decision id; give --id",
        ),
        ("action", BatchColumns(id="id"), "give --checkpoint"),
        ("score", BatchColumns(pmf=True), "a score bundle has no actions; remove --pmf"),
        ("score", BatchColumns(eligible="may"), "remove --eligible"),
        ("score", BatchColumns(keep=("score",)), 'column "score": the output has a column of this name'),
        ("score", BatchColumns(keep=("id", "id")), 'column "id": the output has a column of this name'),
    ],
)
def test_roles_that_do_not_suit_the_bundle(
    score_bundle: Trained, action_bundle: Trained, kind: str, columns: BatchColumns, reason: str
) -> None:
    trained = {"score": score_bundle, "action": action_bundle}[kind]
    with pytest.raises(BatchError) as caught:
        BatchScorer.load(trained.path, columns)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (BatchColumns(keep=("order",)), 'column "order": the table has no such column'),
        (replace(SELECT, id="order"), 'id "order": the table has no such column'),
        (replace(SELECT, id="amount"), 'id "amount": the column of the table has type double'),
        (replace(SELECT, eligible="id"), 'eligible "id": the column of the table has type string'),
    ],
)
def test_columns_with_a_role_are_checked(
    action_bundle: Trained, score_bundle: Trained, columns: BatchColumns, reason: str
) -> None:
    trained = score_bundle if columns.id is None else action_bundle
    scorer = BatchScorer.load(trained.path, columns)
    with pytest.raises(BatchError) as caught:
        scorer.check(table(contexts(1)).schema, "the table")
    assert reason in str(caught.value)


def reasons(result: pa.RecordBatch, count: int) -> list[list[tuple[str, str, float]]]:
    """Return code, feature and contribution of the reasons of each row."""
    names = [
        [f"reason_{at}_{part}" for part in ("code", "feature", "contribution")] for at in range(1, count + 1)
    ]
    rows = [[tuple(result[name][row].as_py() for name in own) for own in names] for row in range(len(result))]
    return [[reason for reason in row if reason[1] is not None] for row in rows]


def test_reasons_are_the_largest_path_attributions(score_bundle: Trained) -> None:
    import xgboost

    rows = contexts(70, seed=11)
    got = scored(score_bundle, table(rows), BatchColumns(reasons=3))
    plain = scored(score_bundle, table(rows), BatchColumns())
    assert all(same_bits(got[name], plain[name]) for name in ("margin", "score"))
    names = [feature.name for feature in CONTEXT]
    data = xgboost.DMatrix(rows, feature_names=names)
    expected = score_bundle.model.predict(data, pred_contribs=True, approx_contribs=True)[:, :-1]
    for own, contributions in zip(reasons(got, 3), expected, strict=True):
        order = np.argsort(-np.abs(contributions), kind="stable")[:3]
        assert [reason[2] for reason in own] == pytest.approx(contributions[order], abs=1e-5)
        for code, feature, amount in own:
            assert code == feature
            assert amount == pytest.approx(contributions[names.index(feature)], abs=1e-5)


def test_reasons_of_actions_belong_to_the_chosen_action(action_bundle: Trained) -> None:
    import xgboost

    rows = contexts(40, seed=12)
    bundle = action_bundle.bundle
    got = scored(action_bundle, table(rows), replace(SELECT, reasons=32, bad_rows="null"))
    columns = [feature.name for feature in action_bundle.schema.columns]
    assert list(bundle.columns) == columns
    for at, own in enumerate(reasons(got, 32)):
        action = bundle.actions.index(got["action"][at].as_py())
        whole = np.concatenate([rows[at], np.array(ACTIONS[action].features, np.float32)])[None, :]
        data = xgboost.DMatrix(whole, feature_names=columns)
        expected = action_bundle.model.predict(data, pred_contribs=True, approx_contribs=True)[0, :-1]
        found = np.zeros(len(columns))
        for _, feature, amount in own:
            found[columns.index(feature)] = amount
        np.testing.assert_allclose(found, expected, atol=1e-5)
        start, exact = bundle.explain(rows[at], action=action)
        margin = action_bundle.model.predict(data, output_margin=True)[0]
        assert start + exact.sum() == pytest.approx(margin, abs=1e-5)


def test_a_refused_row_has_no_reasons(score_bundle: Trained) -> None:
    batch = table(contexts(4, seed=13))
    amount = batch["amount"].to_pylist()
    amount[2] = -1e9
    batch = batch.set_column(batch.schema.get_field_index("amount"), "amount", pa.array(amount))
    got = scored(score_bundle, batch, BatchColumns(reasons=2, bad_rows="null"))
    assert got["reason_1_code"].is_null().to_pylist() == [False, False, True, False]
    assert got["reason_1_contribution"].is_null().to_pylist() == [False, False, True, False]


def test_reasons_that_a_bundle_cannot_give(score_bundle: Trained, bare_bundle: Trained) -> None:
    with pytest.raises(BatchError, match="a row has at most 32 reasons"):
        BatchScorer.load(score_bundle.path, BatchColumns(reasons=33))
    with pytest.raises(BatchError, match=r"no covers\.bin, so it gives no reasons; build it again"):
        BatchScorer.load(bare_bundle.path, BatchColumns(reasons=1))
