"""Tests of `python -m examples.simulators`, which writes files that the learning commands read."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from examples.fraud.transactions import read_transactions
from examples.simulators.__main__ import app
from examples.simulators.actions import catalogue
from scorer.learn import experience_files
from scorer.learn.errors import DataError
from scorer.learn.experience import State


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_writes_transactions(tmp_path):
    path = tmp_path / "t.parquet"
    text = run(
        "transactions",
        "--to",
        str(path),
        "--customers",
        "200",
        "--terminals",
        "2000",
        "--days",
        "10",
        "--start",
        "2024-02-25",
        "--seed",
        "5",
    )
    stream = read_transactions(path)
    assert f"{len(stream):,} transactions" in text
    assert stream.date(0) == "2024-02-25"
    assert stream.date(stream.days - 1) == "2024-03-05"
    again = tmp_path / "again.parquet"
    run(
        "transactions",
        "--to",
        str(again),
        "--customers",
        "200",
        "--terminals",
        "2000",
        "--days",
        "10",
        "--start",
        "2024-02-25",
        "--seed",
        "5",
    )
    assert read_transactions(again).digest() == stream.digest()


def test_the_command_writes_payments(tmp_path):
    path = tmp_path / "p.parquet"
    text = run("payments", "--to", str(path), "--rows", "3000", "--seed", "1")
    assert "3,000 payments" in text
    table = pq.read_table(path)
    assert table.num_rows == 3_000
    ids = {action.id for action in catalogue()}
    assert set(table.column("action").to_pylist()) <= ids
    propensity = np.asarray(table.column("propensity"))
    assert ((propensity > 0) & (propensity <= 1)).all()
    assert 0.6 < np.asarray(table.column("authorised")).mean() < 0.9
    # The hidden draw that determines outcomes must not be in the training data.
    assert "chance" not in table.column_names


def test_weeks_are_written_as_experience(tmp_path):
    path = tmp_path / "weeks.parquet"
    text = run(
        "payments", "--to", str(path), "--weeks", "2", "--rows", "1680", "--shock", "12:NL-bank-0:route=A"
    )
    assert "3,360 payments of 2 weeks" in text
    known = experience_files.read(path)
    assert len(known) == 3_360
    states = {state: int((known.state == state).sum()) for state in State}
    assert f"{states[State.SETTLED]:,} settled, {states[State.IN_FLIGHT]:,} in flight" in text
    assert states[State.IN_FLIGHT] > 0
    hit = (known.context[:, 2] == 0) & (np.char.find(np.array(known.actions), "route=A")[known.action] >= 0)
    assert np.nanmean(known.reward[hit]) < 0.2 < 0.7 < np.nanmean(known.reward[~hit])


def test_another_world_has_other_probabilities(tmp_path):
    words = ("payments", "--weeks", "1", "--rows", "1680", "--to")
    run(*words, str(tmp_path / "own.parquet"))
    run(*words, str(tmp_path / "other.parquet"), "--world-seed", "7")
    own, other = (experience_files.read(tmp_path / f"{name}.parquet") for name in ("own", "other"))
    assert not np.array_equal(own.context, other.context)
    with pytest.raises(AssertionError, match="need --weeks"):
        run("payments", "--to", str(tmp_path / "p.parquet"), "--world-seed", "7")


def test_impossible_outputs_and_plans_are_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be written"):
        run("transactions", "--to", str(tmp_path / "none" / "t.parquet"), "--customers", "50", "--days", "2")
    with pytest.raises(DataError, match="customers is 1"):
        run("transactions", "--to", str(tmp_path / "t.parquet"), "--customers", "1")
