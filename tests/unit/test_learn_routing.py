"""Tests of reading the routing log, and of logs that are rejected."""

from __future__ import annotations

import numpy as np
import pytest

from examples.datasets import ROUTING, dataset, present
from examples.oracle import OraclePlan, train_oracle
from examples.routing_log import read_routing
from scorer.learn.errors import DataError
from scorer.learn.ope import Logged, Target, estimated_pmf, share, snipw

HEAD = "ID,tmsp,country,amount,success,PSP,3D_secured,card"


def write(tmp_path, lines, head=HEAD):
    path = tmp_path / "routing.csv"
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


def lines(n=600, seed=0):
    """Return attempts, one per hour. Provider B succeeds more often, especially with Visa."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(n):
        provider, card = "AB"[rng.integers(2)], ["Visa", "Master"][rng.integers(2)]
        works = rng.random() < (0.2 + 0.4 * (provider == "B") + 0.2 * (provider == "B" and card == "Visa"))
        day, hour = i // 24 % 28 + 1, i % 24
        out.append(
            f"{i},2020-{i // 672 + 1:02}-{day:02} {hour:02}:00:00,Austria,{rng.integers(10, 200)},"
            f"{int(works)},{provider},0,{card}"
        )
    return out


def test_retries_are_equal_attempts_within_a_minute(tmp_path):
    special = [
        "a,2021-01-01 10:00:00,Austria,50,0,A,0,Visa",
        "b,2021-01-01 10:00:30,Austria,50,0,B,0,Visa",  # a retry
        "c,2021-01-01 10:01:30,Austria,50,1,B,0,Visa",  # a retry of the retry
        "d,2021-01-01 10:02:31,Austria,50,1,B,0,Visa",  # 61 seconds later is another purchase
        "e,2021-01-01 10:02:31,Austria,51,1,B,0,Visa",  # another amount
        "f,2021-01-01 10:02:31,Austria,50,1,B,1,Visa",  # another 3DS
        "g,2021-01-01 10:02:31,Austria,50,1,B,0,Master",  # another card
        "h,2021-01-01 10:02:32,Germany,50,1,B,0,Visa",  # another country
    ]
    log = read_routing(write(tmp_path, [*lines(), *special]))
    assert log.is_retry[-8:].tolist() == [0, 1, 1, 0, 0, 0, 0, 0]
    first = log.purchase[-8]
    assert log.purchase[-8:-5].tolist() == [first] * 3
    assert len(set(log.purchase[-5:].tolist()) | {first}) == 6
    assert log.is_retry[:-8].sum() == 0
    assert log.providers == ("A", "B")
    assert log.context[-1].tolist() == [50, 10, 4, 1, 1, 0, 0]


def test_the_order_of_the_file_has_no_effect(tmp_path):
    given = lines()
    forward = read_routing(write(tmp_path, given))
    backward = read_routing(write(tmp_path, given[::-1]))
    assert np.array_equal(forward.context, backward.context)
    assert np.array_equal(forward.success, backward.success)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x,yesterday,Austria,50,0,A,0,Visa", 'line 602: tmsp "yesterday" is not a date and time'),
        ("x,2021-01-01 10:00:00,Austria,fifty,0,A,0,Visa", 'amount "fifty" is not a number'),
        ("x,2021-01-01 10:00:00,Austria,-1,0,A,0,Visa", 'amount "-1" is not between'),
        ("x,2021-01-01 10:00:00,Austria,nan,0,A,0,Visa", 'amount "nan" is not between'),
        ("x,2021-01-01 10:00:00,Austria,50,2,A,0,Visa", 'success "2" is not 0 or 1'),
        ("x,2021-01-01 10:00:00,Austria,50,0,A,yes,Visa", '3D_secured "yes" is not 0 or 1'),
        ("x,2021-01-01 10:00:00,Austria,50,0,,0,Visa", 'PSP "" is not a name'),
        ("x,2021-01-01 10:00:00,Austria", "amount"),
    ],
)
def test_invalid_values_are_refused_with_line_and_column(tmp_path, line, message):
    with pytest.raises(DataError) as refused:
        read_routing(write(tmp_path, [*lines(), line]))
    assert message in str(refused.value)


def test_files_that_are_unsuitable_for_training_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_routing(tmp_path / "none.csv")
    with pytest.raises(DataError, match="column PSP is missing"):
        read_routing(write(tmp_path, [], HEAD.replace("PSP,", "")))
    with pytest.raises(DataError, match="10 rows; at least 500"):
        read_routing(write(tmp_path, lines(10)))
    with pytest.raises(DataError, match="one provider only"):
        read_routing(write(tmp_path, [line.replace(",B,", ",A,") for line in lines()]))
    (tmp_path / "routing.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(DataError, match="not a readable CSV file"):
        read_routing(tmp_path / "routing.csv")


def test_an_oracle_prefers_the_better_provider(tmp_path):
    log = read_routing(write(tmp_path, lines(4_000)))
    oracle = train_oracle(
        log.task("route"),
        log.choices(slice(0, 3_000)),
        log.digest,
        OraclePlan(trees=50, depth=3, learning_rate=0.1),
    )
    held = log.choices(slice(3_000, 4_000))
    predicted = oracle.predict(held.context)
    assert predicted.shape == (1_000, 2)
    assert (predicted[:, 1] > predicted[:, 0]).mean() > 0.95
    logging = estimated_pmf(held.action, log.is_retry[3_000:], 2)
    logged = Logged(
        action=held.action,
        reward=held.reward.astype(float),
        propensity=logging[np.arange(1_000), held.action],
        pmf=logging,
        clusters=log.purchase[3_000:],
    )
    result = snipw(Target(logged, np.eye(2)[predicted.argmax(axis=1)]))
    assert result.low < 0.7 < result.high
    assert result.low > share(int(held.reward.sum()), 1_000).high


@pytest.mark.skipif(not present(ROUTING), reason=f"needs {ROUTING} in SCORER_DATASETS")
def test_the_real_routing_log_is_read():
    log = read_routing(dataset(ROUTING))
    assert len(log) > 20_000
    assert len(log.providers) == 4
    assert 0.1 < log.success.mean() < 0.4
    assert 0.3 < log.is_retry.mean() < 0.6
