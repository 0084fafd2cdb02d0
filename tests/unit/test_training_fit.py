"""Tests of training a generation from experience: model, reproducibility, bundle, rejected data."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import numpy as np
import pytest
from learning import contexts, crossing, logged, small_task

from scorer.bundle import inspect
from scorer.learn.errors import DataError
from scorer.learn.experience import State
from scorer.learn.training.fitting import fit
from scorer.learn.training.generation import Generation
from scorer.learn.training.settings import PolicySettings, TrainSettings
from scorer.learn.training.trained import build_candidate

PLAN = TrainSettings(
    trees=40,
    depth=3,
    learning_rate=0.2,
    folds=2,
    judged_weeks=1,
    colsample=1.0,
    compare=False,
    policy=PolicySettings(rule="epsilon_greedy"),
)
NOW = datetime(2026, 2, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def experience():
    return logged(6_000)


@pytest.fixture(scope="module")
def trained(experience):
    return fit(small_task(), experience, PLAN)


def test_the_generation_prefers_the_better_action(trained):
    given = contexts(500, seed=9)
    _, score = trained.evaluate(given)
    clear = np.abs(given[:, 0]) > 0.5
    assert (score.argmax(axis=1) == crossing(given).argmax(axis=1))[clear].mean() > 0.97
    assert np.abs(score - crossing(given)).mean() < 0.06


def test_the_default_rule_draws_by_loss_ratios(experience):
    plan = PLAN.model_copy(update={"policy": PolicySettings(), "tau": (0.0,)})
    pmf, score = fit(small_task(), experience, plan).evaluate(contexts(300, seed=9))
    loss = 1 - score
    ratio = (loss.min(axis=1, keepdims=True) / loss) ** 100
    # The floor of a hundredth, shared by three actions, reduces no probability by more than itself.
    np.testing.assert_allclose(pmf, ratio / ratio.sum(axis=1, keepdims=True), atol=0.01)
    assert pmf.min() >= 0.01 / 3 - 1e-12


def test_the_same_input_gives_the_same_generation(trained, experience):
    again = fit(small_task(), experience, PLAN)
    assert again.oracle.booster.save_raw() == trained.oracle.booster.save_raw()
    assert again.lineage == trained.lineage
    assert again.policy == trained.policy
    other = fit(small_task(), experience, PLAN.model_copy(update={"seed": 1}))
    assert other.oracle.booster.save_raw() != trained.oracle.booster.save_raw()
    assert other.policy.salt != trained.policy.salt


def test_decisions_without_a_reward_are_not_used(trained, experience):
    extra = logged(600, seed=5)
    unknown = dataclasses.replace(
        extra,
        reward=np.full(600, np.nan),
        settled_ms=np.full(600, -1),
        state=np.where(np.arange(600) % 2, State.MISSING, State.IN_FLIGHT).astype(np.int8),
    )
    both = {
        column.name: np.concatenate([getattr(experience, column.name), getattr(unknown, column.name)])
        for column in dataclasses.fields(experience)
        if column.name not in {"bundles", "lanes", "actions"}
    }
    whole = dataclasses.replace(experience, **both)
    more = fit(small_task(), whole, PLAN)
    assert more.oracle.booster.save_raw() == trained.oracle.booster.save_raw()
    assert more.lineage["decisions"]["in_flight"] == more.lineage["decisions"]["missing"] == 300


def test_the_bundle_gives_the_pmf_of_the_trained_generation(trained, tmp_path):
    built = build_candidate(trained, tmp_path / "one", "run", created_at=NOW)
    assert build_candidate(trained, tmp_path / "two", "run", created_at=NOW).digest == built.digest
    info = inspect(built.path)
    from scorer.bundle import Bundle

    given = contexts(200, seed=3)
    eligible = np.random.default_rng(1).random((200, 3)) < 0.7
    eligible[:, 0] |= ~eligible.any(axis=1)
    for ours, theirs in zip(
        trained.evaluate(given, eligible),
        Bundle.load(built.path).evaluate(given, eligible=eligible),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)
    # The naive calculation: margin of the library, calibration map, epsilon over the eligible actions.
    exploded = np.concatenate([np.repeat(given, 3, axis=0), np.tile([[0], [1], [2]], (200, 1))], axis=1)
    margin = trained.oracle.booster.predict(
        small_task().matrix(exploded.astype(np.float32)), output_margin=True
    ).reshape(200, 3)
    expected = 1 / (1 + np.exp(-(trained.calibration.slope * margin + trained.calibration.intercept)))
    pmf, score = trained.evaluate(given)
    np.testing.assert_allclose(score, expected, atol=1e-6)
    clear = np.ptp(np.sort(score, axis=1)[:, 1:], axis=1) > 1e-6
    best = np.eye(3)[score.argmax(axis=1)]
    np.testing.assert_allclose(pmf[clear], (0.02 / 3 + 0.98 * best)[clear], atol=1e-12)
    learned = info.manifest.lineage.metrics["learning"]
    assert learned["generation"] == 1
    assert learned["weights"]["tau"] == trained.weights.tau
    assert learned["gamma"]["gamma"] == trained.gamma.gamma
    following = Generation.of_bundle(built.path)
    assert following == Generation(1, trained.gamma.gamma, built.digest)


def replaced(**columns):
    def make(experience):
        changed = {name: change(getattr(experience, name)) for name, change in columns.items()}
        return dataclasses.replace(experience, **changed)

    return make


BAD = [
    ("one arm", replaced(action=np.zeros_like), 'every settled decision took "route=A"'),
    ("all alike", replaced(reward=np.ones_like), "all 6000 rewards are 1"),
    ("all declined", replaced(reward=np.zeros_like), "all 6000 rewards are 0"),
    ("no outcomes", replaced(state=lambda s: np.full_like(s, State.MISSING)), "no outcome at all"),
    (
        "in flight",
        replaced(state=lambda s: np.full_like(s, State.IN_FLIGHT)),
        "6000 are in flight and 0 have none",
    ),
    (
        "too few",
        replaced(state=lambda s: np.where(np.arange(len(s)) < 499, 0, 2).astype(np.int8)),
        "499 settled decisions, at least 500",
    ),
    (
        "propensity 0",
        replaced(propensity=lambda p: np.where(np.arange(len(p)) < 7, 0, p)),
        "7 settled decisions",
    ),
    ("propensity NaN", replaced(propensity=lambda p: p * np.nan), "6000 settled decisions have a propensity"),
    ("reward", replaced(reward=lambda r: r / 2), "are neither 0 nor 1"),
    (
        "not eligible",
        replaced(eligible=lambda e: e & [True, True, False]),
        "took an action that was not eligible",
    ),
    ("catalogue", replaced(actions=lambda a: (*a[:2], "route=Z")), "1 of the task's actions are not in it"),
    ("order", replaced(actions=lambda a: a[::-1]), "another catalogue (the order differs)"),
    ("width", replaced(context=lambda c: c[:, :1]), "contexts have 1 columns, the task has 2"),
]


@pytest.mark.parametrize(("name", "make", "message"), BAD, ids=[row[0] for row in BAD])
def test_unsuitable_logs_are_refused_by_name(experience, name, make, message):
    with pytest.raises(DataError) as refused:
        fit(small_task(), make(experience), PLAN)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_gamma_grows_no_faster_than_allowed(experience, trained):
    measured = trained.gamma.measured
    assert trained.gamma.gamma == measured
    policy = PolicySettings(rule="squarecb", gamma_growth=3.0)
    plan = PLAN.model_copy(update={"policy": policy, "tau": (0.0,)})
    small = fit(small_task(), experience, plan, Generation(4, measured / 10, "sha256:x"))
    assert small.gamma.gamma == pytest.approx(0.3 * measured)
    assert small.gamma.limited_by == "growth"
    assert small.policy.gamma == small.gamma.gamma
    assert small.generation == 5
    # Gamma may fall without a limit.
    large = fit(small_task(), experience, plan, Generation(4, measured * 10, "sha256:x"))
    assert large.gamma.gamma == pytest.approx(measured)
    assert large.gamma.limited_by == ""
    # The same holds between generations in memory.
    following = fit(small_task(), experience, plan, small)
    assert following.gamma.gamma == pytest.approx(min(measured, 0.9 * measured))
    assert following.generation == 6
    first = plan.model_copy(update={"policy": policy.model_copy(update={"gamma_first": 7.0})})
    assert fit(small_task(), experience, first).policy.gamma == 7.0
