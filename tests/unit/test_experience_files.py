"""Tests of writing and reading experience files, and of files that are rejected."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scorer.learn.errors import DataError
from scorer.learn.experience import Experience, State
from scorer.learn.experience_files import read, write


def experience(n=7, actions=3, columns=2, seed=0) -> Experience:
    rng = np.random.default_rng(seed)
    pmf = rng.dirichlet(np.ones(actions), n).astype(np.float32)
    action = rng.integers(0, actions, n)
    state = rng.integers(0, 3, n).astype(np.int8)
    return Experience(
        decision_id=np.array([f"d-{i}" for i in range(n)], dtype=np.str_),
        entity=np.array(["" if i % 2 else "köln" for i in range(n)], dtype=np.str_),
        time_ms=np.arange(n) * 1000 + 1_700_000_000_000,
        settled_ms=np.where(state == State.SETTLED, 5, -1),
        context=np.where(rng.random((n, columns)) < 0.2, np.nan, rng.random((n, columns))).astype(np.float32),
        eligible=rng.random((n, actions)) < 0.7,
        pmf=pmf,
        action=action,
        propensity=pmf[np.arange(n), action].astype(np.float64),
        reward=np.where(state == State.SETTLED, rng.integers(0, 2, n), np.nan).astype(np.float64),
        state=state,
        bundle=rng.integers(0, 2, n),
        lane=np.zeros(n, dtype=np.int64),
        bundles=("sha256:a", "sha256:b"),
        lanes=("live",),
        actions=tuple("abcdefgh"[:actions]),
    )


@pytest.mark.parametrize("n", [0, 1, 7, 2_000])
def test_a_written_file_is_read_bit_for_bit(tmp_path, n):
    written = experience(n)
    write(written, tmp_path / "deep" / "e.parquet")
    result = read(tmp_path / "deep" / "e.parquet")
    for field in dataclasses.fields(Experience):
        ours, theirs = getattr(result, field.name), getattr(written, field.name)
        if isinstance(ours, tuple):
            assert ours == theirs
        else:
            assert ours.shape == theirs.shape, field.name
            kind = theirs.dtype.kind
            assert ours.dtype.kind == ("T" if kind == "U" else kind), field.name
            np.testing.assert_array_equal(ours, theirs)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["e.parquet"]


def test_one_long_id_does_not_widen_the_other_ids(tmp_path):
    written = dataclasses.replace(experience(2_000), entity=np.array(["x" * 10_000] + ["y"] * 1_999))
    write(written, tmp_path / "e.parquet")
    result = read(tmp_path / "e.parquet")
    assert result.entity.nbytes == 16 * 2_000
    assert result.entity[0] == "x" * 10_000
    assert result.digest() == written.digest()


def test_other_tools_can_read_the_file(tmp_path):
    import duckdb

    written = experience(5)
    write(written, tmp_path / "e.parquet")
    rows = duckdb.sql(f"select pmf[1], decision_id from '{tmp_path}/e.parquet' order by time_ms").fetchall()
    assert rows == [
        (float(p), str(name)) for p, name in zip(written.pmf[:, 0], written.decision_id, strict=True)
    ]


def test_other_files_are_refused_by_name(tmp_path):
    path = tmp_path / "e.parquet"
    with pytest.raises(DataError, match="no such file"):
        read(path)
    path.write_bytes(b"not parquet")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        read(path)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(DataError, match="does not say what it holds"):
        read(path)
    result = experience(5)
    write(dataclasses.replace(result, action=np.array([0, 1, 2, 3, -1])), path)
    with pytest.raises(DataError, match="action of 2 rows is not in the metadata"):
        read(path)
    write(result, path)
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["pmf"]), path)
    with pytest.raises(DataError, match="column pmf is missing"):
        read(path)
    write(dataclasses.replace(result, pmf=result.pmf[:, :2]), path)
    with pytest.raises(DataError, match="column pmf does not hold 3 values"):
        read(path)


def test_a_file_of_a_version_without_sources_has_none(tmp_path):
    path = tmp_path / "e.parquet"
    plain = experience(5)
    written = dataclasses.replace(plain, source=np.array([0, 1, 2, 3, 4], np.int8))
    assert written.digest() != plain.digest()
    write(written, path)
    assert read(path).source.tolist() == [0, 1, 2, 3, 4]
    assert written.take(slice(1, 3)).source.tolist() == [1, 2]
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["source"]), path)
    old = read(path)
    assert old.source.tolist() == [0] * 5
    assert old.digest() == plain.digest()
