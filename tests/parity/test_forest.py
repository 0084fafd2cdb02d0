"""The Forest class itself: rows it takes and refuses, files it writes and reads."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pyarrow as pa
import pytest
import xgboost as xgb

from scorer.errors import ForestError
from scorer.forest import Forest


@pytest.fixture(scope="module")
def rows(table) -> np.ndarray:
    return table(1, rows=300, features=5)


@pytest.fixture(scope="module")
def forest(rows) -> Forest:
    data = xgb.DMatrix(rows, np.nansum(rows, axis=1) > 0)
    return Forest.from_xgboost(xgb.train({"objective": "binary:logistic", "nthread": 1}, data, 20))


def test_a_forest_describes_itself(forest) -> None:
    assert repr(forest) == (
        "Forest(trees=20, features=5, outputs=1, max_depth=6, link='sigmoid', precision='float32')"
    )
    assert (forest.num_trees, forest.num_features, forest.num_outputs, forest.link) == (20, 5, 1, "sigmoid")


def test_rows_of_other_layouts_and_types_give_the_same_scores(forest, rows, assert_bits) -> None:
    expected = forest.predict(rows)
    assert_bits(forest.predict(np.asfortranarray(rows)), expected)
    assert_bits(forest.predict(np.repeat(rows, 2, axis=0)[::2]), expected)
    assert_bits(forest.predict(rows.astype(np.float64)), expected)
    assert_bits(forest.predict(rows.astype(">f4")), expected)
    assert_bits(forest.predict(rows.tolist()), expected)
    whole = np.round(np.nan_to_num(rows)).astype(np.int16)
    assert_bits(forest.predict(whole), forest.predict(whole.astype(np.float32)))
    read_only = rows.copy()
    read_only.flags.writeable = False
    assert_bits(forest.predict(read_only), expected)


def test_arrow_tables_give_the_scores_of_their_rows(forest, rows, assert_bits) -> None:
    many = np.tile(rows, (300, 1)).astype(np.float64)  # more rows than one part
    names = [f"f{place}" for place in range(5)]
    # Arrow's nulls in place of NaN, and columns of several types and chunks.
    columns = [pa.array(column, from_pandas=True) for column in many.T]
    columns[1] = columns[1].cast(pa.int16(), safe=False)
    columns[2] = pa.chunked_array([columns[2][:100], columns[2][100:]]).cast(pa.float32())
    table = pa.table(columns, names=names)
    found = forest.predict(table)
    assert_bits(found, forest.predict(many))
    assert_bits(forest.predict(table.to_batches()[0]), found[: table.to_batches()[0].num_rows])
    out = np.empty(len(many), np.float32)
    assert forest.predict(table, out=out) is out
    assert_bits(out, found)
    with pytest.raises(ForestError, match=r"shape \[90000, 4\].*\[n, 5\]"):
        forest.predict(table.select(names[:4]))
    words = table.set_column(3, "word", pa.array(["a"] * len(many)))
    with pytest.raises(ForestError, match="column 'word' has type string; encode it"):
        forest.predict(words)
    large = table.set_column(0, "f0", pa.array([1e300] * len(many)))
    with pytest.raises(ForestError, match="beyond float32"):
        forest.predict(large)


def test_any_number_of_rows_is_scored(forest, rows, assert_bits) -> None:
    assert forest.predict(rows[:0]).shape == (0,)
    assert_bits(forest.predict(rows[:1]), forest.predict(rows)[:1])
    many = np.tile(rows, (400, 1))  # more rows than one chunk
    assert_bits(forest.predict(many), np.tile(forest.predict(rows), 400))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(5, np.float32), r"shape \[5\].*\[n, 5\].*x\[None, :\]"),
        (np.zeros((2, 4), np.float32), r"shape \[2, 4\].*\[n, 5\]"),
        (np.zeros((2, 6), np.float32), r"shape \[2, 6\].*\[n, 5\]"),
        (np.zeros((2, 5, 1), np.float32), r"shape \[2, 5, 1\]"),
        (np.zeros((2, 5), complex), "type complex128.*float32"),
        (np.full((2, 5), "1"), "type <U1.*encode"),
        (np.full((2, 5), None), "type object"),
        (np.full((2, 5), 1e300), "beyond float32"),
    ],
)
def test_invalid_rows_are_refused(forest, values, message) -> None:
    with pytest.raises(ForestError, match=message):
        forest.predict(values)


def test_infinite_float64_values_stay_infinite(forest) -> None:
    rows = np.array([[np.inf, -np.inf, np.nan, 0.0, 1.0]])
    assert np.isfinite(forest.predict(rows)).all()


def test_a_forest_is_written_and_read(forest, rows, tmp_path, assert_bits) -> None:
    path = tmp_path / "forest.bin"
    forest.save(path)
    forest.save(path)
    again = Forest.load(path)
    assert [part.name for part in tmp_path.iterdir()] == ["forest.bin"]
    assert again.to_bytes() == forest.to_bytes() == path.read_bytes()
    assert_bits(again.predict(rows), forest.predict(rows))
    assert_bits(pickle.loads(pickle.dumps(forest)).predict(rows), forest.predict(rows))


def test_invalid_files_are_refused(forest, tmp_path) -> None:
    path = tmp_path / "forest.bin"
    good = forest.to_bytes()
    for data, message in [
        (b"", "not a packed forest"),
        (b"hello, world", "not a packed forest"),
        (good[:-1], "truncated"),
        (good[:40], "truncated"),
        (good + b"\0", "left over"),
        (good[:200] + bytes([good[200] ^ 1]) + good[201:], "CRC32C"),
        (good[:8] + b"\x09" + good[9:], "version 9"),
    ]:
        path.write_bytes(data)
        with pytest.raises(ForestError, match=rf"forest\.bin.*{message}"):
            Forest.load(path)
    with pytest.raises(ForestError, match=r"absent.*cannot be read: No such file"):
        Forest.load(tmp_path / "absent")
    with pytest.raises(ForestError, match=r"cannot be written: No such file"):
        forest.save(tmp_path / "absent" / "forest.bin")


def test_threads_can_share_a_forest(forest, rows, assert_bits) -> None:
    expected = forest.predict(rows)
    results: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: results.append(forest.predict(rows))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    for result in results:
        assert_bits(result, expected)


def test_a_forest_is_immutable(forest) -> None:
    with pytest.raises(AttributeError):
        forest.num_trees = 3
    with pytest.raises(AttributeError):
        forest.anything = 3
