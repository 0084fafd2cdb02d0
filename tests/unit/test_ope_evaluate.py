"""Tests of `scorer learn evaluate` on a log of a bundle's decisions with known rewards."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from bundles import ACTIONS, rows, tiny_action_bundle
from typer.testing import CliRunner

from scorer.learn.errors import DataError
from scorer.learn.experience import Experience, State
from scorer.learn.experience_files import write
from scorer.learn.ope import Logged
from scorer.learn.ope.evaluate import evaluate

N = 4_000
# The reward of each action, independent of the context.
WORTH = np.linspace(0.6, 0.95, len(ACTIONS))


@pytest.fixture(scope="module")
def evaluated_log(tmp_path_factory):
    """Two bundles, a log of the first one, and the true values of both policies on its contexts."""
    from scorer.bundle import Bundle

    folder = tmp_path_factory.mktemp("evaluate")
    paths = folder / "live", folder / "candidate"
    digests = [tiny_action_bundle(path, variant=variant) for variant, path in enumerate(paths, start=1)]
    rng = np.random.default_rng(0)
    context = rows(N, seed=5)
    eligible = rng.random((N, len(ACTIONS))) < 0.8
    eligible[:, 0] = True
    pmfs = [Bundle.load(path).evaluate(context, eligible=eligible)[0] for path in paths]
    # A tenth of the decisions is uniform, so that all choices of the candidate are possible.
    logging = 0.9 * pmfs[0] + 0.1 * eligible / eligible.sum(axis=1, keepdims=True)
    logging = logging.astype(np.float32)
    action = (np.cumsum(logging, axis=1) < rng.random((N, 1))).sum(axis=1).clip(max=len(ACTIONS) - 1)
    reward = (rng.random(N) < WORTH[action]).astype(float)
    experience = Experience(
        decision_id=np.array([f"d{i}" for i in range(N)]),
        entity=np.array([""] * N),
        time_ms=np.arange(N) * 1000,
        settled_ms=np.arange(N) * 1000 + 5,
        context=context,
        eligible=eligible,
        pmf=logging,
        action=action,
        propensity=logging[np.arange(N), action].astype(float),
        reward=reward,
        state=np.zeros(N, dtype=np.int8),
        bundle=np.zeros(N, dtype=np.int64),
        lane=np.zeros(N, dtype=np.int64),
        bundles=(digests[0],),
        lanes=("live",),
        actions=ACTIONS,
    )
    values = [float((pmf @ WORTH).mean()) for pmf in pmfs]
    return experience, paths, values


def test_every_estimator_is_near_the_true_value_and_the_difference_is_more_precise(evaluated_log):
    experience, (live, candidate), values = evaluated_log
    result = evaluate(
        experience, candidate, baseline=live, factors=["3ds", "exemption"], loggers=[live], folds=3
    )
    names = [one.estimator for one in result.candidate.estimates]
    wanted = ("IPW", "SNIPW", "DM", "DR", "SNDR", "MIPS", "MIPS-DR", "balanced IPW", "balanced DR")
    assert set(wanted) <= set(names)
    assert any(name.startswith("Switch-DR") or name == "Switch-DR" for name in names)
    assert result.candidate.chosen in names
    by_name = {one.estimator: one for one in result.candidate.estimates}
    for name in ("IPW", "SNIPW", "DR", "SNDR", "MIPS", "MIPS-DR"):
        one = by_name[name]
        assert one.low - one.width < values[1] < one.high + one.width, name
    low, high = result.candidate.anytime
    assert low < values[1] < high
    assert result.difference.low - 0.01 < values[1] - values[0] < result.difference.high + 0.01
    assert result.difference.width < by_name["DR"].width + next(
        one.width for one in result.baseline.estimates if one.estimator == "DR"
    )
    assert result.candidate.diagnostics.outside == 0
    # The policy of this bundle is almost that of the log, so the weights are almost uniform.
    assert result.baseline.diagnostics.effective_rows > 0.8 * N


def test_the_table_equals_the_json(evaluated_log, tmp_path):
    experience, (_, candidate), _ = evaluated_log
    from scorer.commands.learn import app

    state = experience.state.copy()
    reward = experience.reward.copy()
    state[:7], reward[:7] = State.IN_FLIGHT, np.nan
    write(dataclasses.replace(experience, state=state, reward=reward), tmp_path / "e.parquet")
    result = CliRunner().invoke(
        app,
        [
            "evaluate",
            str(tmp_path / "e.parquet"),
            "--bundle",
            str(candidate),
            "--folds",
            "2",
            "--output",
            str(tmp_path / "o.json"),
        ],
    )
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "o.json").read_text())
    assert "3,993 decisions; left out: 7 with reward in flight" in result.output
    for name in ("IPW", "SNIPW", "DM", "DR", "SNDR"):
        value = document["candidate"]["estimates"][name]["value"]
        assert f"{100 * value:.2f} %" in result.output
    assert "effective rows of 3,993" in result.output
    assert "candidate minus the logged policy" in result.output
    assert document["excluded"] == {"reward in flight": 7}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"propensity": 0.0}, "with propensity 0 or less"),
        ({"propensity": np.nan}, "with propensity missing"),
        ({"propensity": 2.0}, "with propensity above 1"),
        ({"reward": np.nan}, "with reward not a number though settled"),
        ({"reward": 2.0}, "with reward outside 0 to 1"),
        ({"pmf": 0.3}, "with pmf not summing to 1"),
        ({"pmf": -0.3}, "with pmf with a negative or missing entry"),
        ({"pmf": np.nan}, "with pmf with a negative or missing entry"),
        ({"propensity": 0.123456}, "with propensity that is not the pmf's"),
    ],
)
def test_few_defects_are_counted_and_excluded_and_many_are_refused(evaluated_log, damage, message):
    experience, _, _ = evaluated_log
    ((column, value),) = damage.items()
    for rows_hit, refused in ((100, False), (1_000, True)):
        values = getattr(experience, column).copy()
        values[:rows_hit] = value
        hit = dataclasses.replace(experience, **{column: values})
        if refused:
            with pytest.raises(DataError, match=f"1000 of 4000 settled .*[(]1000 {message}"):
                Logged.read(hit)
        else:
            result = Logged.read(hit)
            assert len(result) == N - 100
            assert result.excluded == {message.removeprefix("with "): 100}


def test_uninformative_logs_are_refused(evaluated_log):
    experience, (live, candidate), _ = evaluated_log
    with pytest.raises(DataError, match="no rows are left; the log is empty"):
        Logged.read(experience.take(slice(0, 0)))
    unsettled = dataclasses.replace(experience, state=np.full(N, State.MISSING, dtype=np.int8))
    with pytest.raises(DataError, match=f"no rows are left; left out: {N} with reward missing"):
        Logged.read(unsettled)
    one = experience.take(experience.action == 0)
    with pytest.raises(DataError, match="a log of one action says nothing about others"):
        Logged.read(one)
    masked = experience.eligible.copy()
    masked[:50, 1:] = False
    wrong = dataclasses.replace(experience, eligible=masked)
    assert 1 <= Logged.read(wrong).excluded["pmf above 0 on an ineligible action"] <= 50
    with pytest.raises(DataError, match="another catalogue"):
        evaluate(dataclasses.replace(experience, actions=tuple("abcdef")), candidate)
    with pytest.raises(DataError, match="no such factor: colour; there are: 3ds, exemption"):
        evaluate(experience, candidate, factors=["colour"], folds=2)
    two = dataclasses.replace(experience, bundles=("sha256:other",))
    with pytest.raises(DataError, match="missing: sha256:other"):
        evaluate(two, candidate, loggers=[live], folds=2)
