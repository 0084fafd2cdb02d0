"""A few candidates of the zoo: worthless ones are stopped, good ones pass. `make bench-gates` has all."""

from __future__ import annotations

import numpy as np
import pytest

from loadtests.zoo import candidates
from loadtests.zoo.judged import Row, judge
from loadtests.zoo.payments import simulated

SIZE = 10_000
BAD = (
    "permuted labels",
    "constant score",
    "score x 0.5",
    "inverted",
    "terminal risks served as 0",
    "NaN in 1 %",
    "late by 2x",
)
GOOD = ("twin, seed 1", "rescaled, own thresholds", "LightGBM")


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    payments = simulated(customers=2_500, days=101)
    live, score = candidates.live(payments)
    models = (
        candidates.make(fit, payments, live, score) for fit in candidates.FITS if fit.name in (*BAD, *GOOD)
    )
    counts = {SIZE: 3}
    return {one.name: judge(payments, live, one, sizes=(SIZE,), counts=counts) for one in models}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_candidate_is_stopped_in_every_window(rows: dict[str, Row], name: str) -> None:
    assert rows[name].stopped["both", SIZE] == 1, rows[name]


@pytest.mark.parametrize("name", GOOD)
def test_a_good_candidate_passes_in_most_windows(rows: dict[str, Row], name: str) -> None:
    row = rows[name]
    assert row.kind == "good", row
    assert row.stopped["both", SIZE] <= 1 / 3, row


@pytest.mark.parametrize("name", ["permuted labels", "constant score", "inverted"])
def test_a_model_that_finds_no_fraud_is_stopped_by_the_backtest(rows: dict[str, Row], name: str) -> None:
    row = rows[name]
    assert row.lost > 0.5 and row.kind == "bad"
    assert any(gate.startswith("backtest_") for gate in row.by), row


def test_faults_that_keep_the_ranking_are_stopped_by_the_gates_on_their_effect(rows: dict[str, Row]) -> None:
    assert rows["NaN in 1 %"].by["error_rate"] == 3
    assert rows["late by 2x"].by["exec_p99_us"] == 3
    assert rows["score x 0.5"].by["flagged_share_change"] == 3
    assert np.isclose(rows["score x 0.5"].lost, 0)
