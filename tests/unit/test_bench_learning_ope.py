"""Tests of the off-policy parts of the learning benchmark, in their quick form on frozen worlds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from examples.routing_log import RoutingLog
from loadtests.learning import digits, intervals, obp, peeking, routing
from loadtests.learning.designs import RATES, design
from loadtests.learning.options import Options

QUICK = Options(seeds=(1,), quick=True)


class Recorder:
    """Records figures as the file of a run does."""

    def __init__(self) -> None:
        self.added = {}

    def add(self, *, name, ours, unit, command, **more):
        assert math.isfinite(ours)
        assert command.startswith("make bench-learning ARGS=")
        assert name not in self.added
        self.added[name] = {"ours": ours, "unit": unit, **more}


@pytest.mark.parametrize("part", [intervals, peeking])
def test_each_part_of_the_benchmark_runs(part):
    recorder = Recorder()
    part.run(recorder, QUICK)
    assert len(recorder.added) == {"intervals": 6, "peeking": 6}[part.__name__.rsplit(".", 1)[1]]
    assert any(figure.get("target") is not None for figure in recorder.added.values())


def test_the_routing_part_reports_a_missing_log(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SCORER_DATASETS", str(tmp_path))
    recorder = Recorder()
    routing.run(recorder, QUICK)
    assert not recorder.added
    assert "skipped: the routing log is not at" in capsys.readouterr().out


def test_the_balance_check_distinguishes_random_choices():
    rng = np.random.default_rng(0)
    n = 8_000
    context = np.zeros((n, 7), dtype=np.float32)
    context[:, 0], context[:, 1] = rng.gamma(2, 50, n), rng.integers(0, 24, n)
    context[:, 2], context[:, 4] = rng.integers(0, 7, n), rng.integers(0, 3, n)
    retry = rng.integers(0, 2, n)
    # A dependence on the retry is expected. Card 2 is sent to provider 0 half of the time, which is not
    # random.
    provider = np.where(rng.random(n) < 0.3 + 0.4 * retry, 1, rng.integers(0, 4, n))
    provider = np.where((context[:, 4] == 2) & (rng.random(n) < 0.5), 0, provider)
    log = RoutingLog(context, provider, rng.integers(0, 2, n), retry, np.arange(n), (), tuple("abcd"), "")
    balance = routing.balance(log)
    assert balance["card"][0] > 0.2
    assert balance["country"] == (0, 0)
    for name in ("hour (four-hour blocks)", "weekday", "amount (fifths)"):
        strength, chance = balance[name]
        assert strength == pytest.approx(chance, abs=0.012)


def test_worlds_equal_their_frozen_definition():
    for rate in RATES:
        moments = [design(rate, regime).second_moment() for regime in ("broad", "usual", "narrow")]
        assert moments == pytest.approx([7.978, 15.30, 44.89], rel=1e-3)
        assert design(rate, "usual").value == pytest.approx(rate)
    result = design(0.9, "usual")
    assert result.least_variance() == pytest.approx(0.1136 * (0.9 * result.second_moment() - 0.81), rel=0.03)
    for pmf in (result.logging, result.target):
        np.testing.assert_allclose(pmf.sum(axis=1), 1)
        assert (pmf[~result.eligible] == 0).all()


def test_a_run_of_the_digits_protocol_equals_that_of_the_example():
    """The values are those of Open Bandit Pipeline's classes for run 0.

    Versions of libraries change them slightly.
    """
    result = digits.relative_errors(0)
    assert result.keys() == digits.PUBLISHED.keys()
    assert result["dm"] == pytest.approx(0.44608, abs=0.02)
    assert result["ipw"] == pytest.approx(0.03279, abs=0.02)
    assert result["dr"] == pytest.approx(0.01256, abs=0.02)
    assert result["sndr"] == pytest.approx(0.05711, abs=0.02)


def test_the_replacement_of_pytorch_is_removed_again():
    import sys

    obp.load()
    assert not isinstance(sys.modules.get("torch"), obp._Absent)
