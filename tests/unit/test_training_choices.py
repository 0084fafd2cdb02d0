"""Tests of the choices of training (weights, calibration, gamma, members) against plain code."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from learning import DAY_MS, START_MS, contexts, crossing, even, logged, small_task

from scorer.bundle import PolicySpec
from scorer.learn.experience import State
from scorer.learn.training.boosting import boost, exploded, margins, repetitions
from scorer.learn.training.fitting import fit
from scorer.learn.training.out_of_fold import folds, out_of_fold
from scorer.learn.training.policies import choose_gamma, excess_error, judging_spec, policy_spec
from scorer.learn.training.progressive import choose_weights, sample_weights
from scorer.learn.training.settings import PolicySettings, TrainSettings
from scorer.learn.training.steps import steps
from scorer.stats.means import effective_sample_size

PLAN = TrainSettings(
    trees=30, depth=3, learning_rate=0.3, folds=2, judged_weeks=2, colsample=1.0, compare=False
)
GREEDY = PolicySpec(rule="epsilon_greedy", epsilon=0.0, salt="0" * 32)


def test_weights_are_the_clipped_power_at_mean_one():
    p = np.array([0.01, 0.25, 1.0])
    np.testing.assert_array_equal(sample_weights(p, 0, 50), np.ones(3))
    np.testing.assert_allclose(sample_weights(p, 1, 50), np.array([50, 4, 1]) * 3 / 55)
    np.testing.assert_allclose(sample_weights(p, 1, 1000), np.array([100, 4, 1]) * 3 / 105)
    np.testing.assert_allclose(sample_weights(p, 0.5, 50), np.array([10, 2, 1]) * 3 / 13)
    assert effective_sample_size(sample_weights(p, 1, 50)) == pytest.approx(55**2 / (2500 + 16 + 1))


def test_a_step_trains_on_known_outcomes_and_is_evaluated_on_later_decisions():
    e = logged(3_000, days=21)
    late = np.random.default_rng(0).random(3_000) < 0.3
    e = dataclasses.replace(e, settled_ms=e.time_ms + np.where(late, 3 * DAY_MS, 1))
    e = dataclasses.replace(e, state=np.where(np.arange(3_000) % 10 == 0, State.MISSING, e.state))
    end = int(e.time_ms[e.state == State.SETTLED].max()) + 1
    result = steps(e, 7, 2)
    assert [step.at_ms for step in result] == [end - 14 * DAY_MS, end - 7 * DAY_MS]
    for step in result:
        for row in range(len(e)):
            settled, time = e.state[row] == State.SETTLED, e.time_ms[row]
            assert (
                (row in set(step.training)) == (settled and e.settled_ms[row] < step.at_ms)
                if row < 40
                else True
            )
            assert (
                (row in set(step.judged)) == (settled and step.at_ms <= time < step.at_ms + 7 * DAY_MS)
                if row > 2_960
                else True
            )
        assert (e.settled_ms[step.training] < step.at_ms).all()
        assert len(step.training) == ((e.state == State.SETTLED) & (e.settled_ms < step.at_ms)).sum()
    assert len(steps(e, 7, 9)) == 2
    # A log shorter than one and a half steps is split at 70 %.
    (short,) = steps(logged(1_000, days=10), 7, 2)
    assert len(short.judged) == pytest.approx(300, abs=2)
    assert steps(dataclasses.replace(e, reward=np.ones(3_000)), 7, 2) == []


def divided(context):
    """Return rewards `[n, 2]`: A is far better for small amounts, B slightly for large ones, A in total."""
    small = context[:, :1] < 0
    return np.where(small, [[0.95, 0.35]], [[0.55, 0.75]])


def sure_of_small(context):
    """Return a logging pmf `[n, 2]` that mostly chooses A for small amounts and is uniform for large ones."""
    return np.where(context[:, :1] < 0, [[0.95, 0.05]], [[0.5, 0.5]])


def test_weights_are_chosen_if_they_improve_the_policy():
    """Stumps cannot express that the better action depends on the amount.

    Without weights, they fit the region where the log compares both actions equally, and choose B everywhere.
    With weights, they choose the action that is better in total.
    """
    plan = PLAN.model_copy(update={"depth": 1, "trees": 60, "tau": (0.0, 1.0)})
    e = logged(8_000, truth=divided, pmf=sure_of_small)
    choice = choose_weights(small_task(2), e, plan, GREEDY)
    by = {one.tau: one for one in choice.candidates}
    assert choice.tau == 1
    assert by[1].value - by[0].value > 0.05
    assert by[0].behind > 2 * by[0].behind_error
    # The choice by log loss only.
    assert by[0].log_loss < by[1].log_loss
    # The true value, which the choice did not use.
    given = contexts(2_000, seed=5)
    truth = divided(given)
    values = {}
    for tau in (0.0, 1.0):
        _, score = fit(small_task(2), e, plan.model_copy(update={"tau": (tau,)})).evaluate(given)
        values[tau] = truth[np.arange(2_000), score.argmax(axis=1)].mean()
    assert values[1.0] > values[0.0] + 0.05


def skewed(context):
    """Return a logging pmf `[n, 3]` that prefers a random action, independent of the rewards."""
    favoured = (np.abs(context[:, 0] * 7).astype(int)) % 3
    return 0.03 + 0.91 * np.eye(3)[favoured]


def test_no_weights_are_chosen_if_the_model_can_express_the_truth():
    choice = choose_weights(small_task(), logged(8_000, pmf=skewed), PLAN, GREEDY)
    by = {one.tau: one for one in choice.candidates}
    assert choice.tau == 0
    assert by[0].log_loss < by[0.5].log_loss < by[1].log_loss
    assert by[0].effective_rows > by[0.5].effective_rows > by[1].effective_rows
    assert choice.effective_rows == choice.rows == 8_000


def test_evaluated_values_equal_those_of_a_naive_reference():
    e, task = logged(1_200, pmf=skewed, days=14), small_task()
    plan = PLAN.model_copy(update={"tau": (0.0, 1.0), "judged_weeks": 1, "clip": 8.0})
    choice = choose_weights(task, e, plan, judging_spec(PolicySettings(rule="epsilon_greedy"), None))
    (step,) = steps(e, plan.week_days, 1)
    known, judged = e.take(step.training), e.take(step.judged)
    scores = []
    for tau in plan.tau:
        raw = np.array([min(p**-tau, 8.0) for p in known.propensity])
        booster = boost(task, exploded(task, known), known.reward, raw / raw.mean(), plan)
        rows = np.concatenate(
            [np.repeat(judged.context, 3, axis=0), np.tile([[0], [1], [2]], (len(judged), 1))], axis=1
        )
        scores.append(booster.predict(task.matrix(rows.astype(np.float32))).reshape(-1, 3).astype(float))
    shared = (scores[0] + scores[1]) / 2
    for candidate, score in zip(choice.candidates, scores, strict=True):
        total, weights, earned, loss = 0.0, 0.0, 0.0, 0.0
        for row in range(len(judged)):
            best = [a for a in range(3) if score[row, a] == score[row].max()]
            policy = [0.02 / 3 + 0.98 * (a in best) / len(best) for a in range(3)]
            taken, reward = int(judged.action[row]), judged.reward[row]
            weight = min(policy[taken] / judged.propensity[row], 8.0)
            total += sum(policy[a] * shared[row, a] for a in range(3)) + weight * (
                reward - shared[row, taken]
            )
            weights, earned = weights + weight, earned + weight * reward
            loss -= math.log(score[row, taken] if reward else 1 - score[row, taken])
        assert candidate.value == pytest.approx(total / len(judged), abs=1e-6)
        assert candidate.snipw == pytest.approx(earned / weights, abs=1e-6)
        assert candidate.log_loss == pytest.approx(loss / len(judged), abs=1e-6)
    assert choice.judged == len(judged)


def test_a_single_candidate_is_chosen_and_an_unsuitable_log_is_reported():
    e = logged(900)
    assert choose_weights(small_task(), e, PLAN.model_copy(update={"tau": (0.5,)}), GREEDY).tau == 0.5
    same_time = dataclasses.replace(e, time_ms=np.full(900, START_MS), settled_ms=np.full(900, START_MS))
    choice = choose_weights(small_task(), same_time, PLAN, GREEDY)
    assert choice.tau == 0
    assert "nothing can be judged" in choice.reason


def test_calibration_corrects_an_overconfident_oracle_and_keeps_the_order():
    plan = PLAN.model_copy(update={"depth": 8, "trees": 120, "min_child_weight": 0.0, "folds": 4})
    trained = fit(small_task(), logged(2_500), plan.model_copy(update={"tau": (0.0,)}))
    assert 0 < trained.calibration.slope < 0.8
    assert trained.metrics["log_loss"] < trained.metrics["log_loss_uncalibrated"] - 0.02
    # The decisions were used neither for the oracle nor for the map.
    fresh = logged(4_000, seed=8)
    raw = margins(small_task(), trained.oracle.booster, exploded(small_task(), fresh))
    _, score = trained.evaluate(fresh.context)
    mended = score[np.arange(4_000), fresh.action]
    plain = 1 / (1 + np.exp(-raw))

    def log_loss(q):
        return -(fresh.reward * np.log(q) + (1 - fresh.reward) * np.log(1 - q)).mean()

    assert log_loss(mended) < log_loss(plain) - 0.02
    order = np.argsort(raw, kind="stable")
    assert (np.diff(mended[order]) >= 0).all()
    none = fit(small_task(), logged(2_500), plan.model_copy(update={"tau": (0.0,), "calibration": "none"}))
    assert none.calibration is None
    np.testing.assert_array_equal(none.evaluate(fresh.context)[1].argmax(1), score.argmax(1))


def test_a_fold_is_predicted_by_the_others_and_contains_all_rows_of_a_shopper():
    e, task = logged(1_500), small_task()
    plan = PLAN.model_copy(update={"folds": 3})
    result = out_of_fold(task, e, np.ones(1_500), plan)
    assert set(result.fold) == {0, 1, 2}
    for shopper in set(e.entity.tolist()):
        assert len(set(result.fold[e.entity == shopper])) == 1
    held = result.fold == 1
    booster = boost(task, exploded(task, e)[~held], e.reward[~held], np.ones((~held).sum()), plan)
    np.testing.assert_allclose(
        result.margin[held], margins(task, booster, exploded(task, e)[held]), rtol=1e-6
    )
    nobody = dataclasses.replace(e, entity=np.full(1_500, ""))
    assert np.bincount(folds(nobody, plan)).min() > 400
    blocks = folds(e, plan.model_copy(update={"fold_by": "time"}))
    assert (np.diff(blocks[np.argsort(e.time_ms, kind="stable")]) >= 0).all()
    assert np.bincount(blocks).tolist() == [500, 500, 500]


def test_gamma_is_the_root_of_actions_over_excess_error():
    # Two levels are predicted as .5 and .7, and their observed rates are .4 and .9.
    probability = np.repeat([0.5, 0.7], 100)
    reward = np.repeat([1.0, 0.0, 1.0, 0.0], [40, 60, 90, 10])
    brier, floor = excess_error(probability, reward)
    assert brier == pytest.approx((100 * 0.25 + 90 * 0.09 + 10 * 0.49) / 200)
    assert floor == pytest.approx((100 * 0.24 + 100 * 0.09) / 200)
    # Recalibration removes the squared differences of the levels: .1 and .2.
    assert brier - floor == pytest.approx((0.01 + 0.04) / 2)
    choice = choose_gamma(probability, reward, 6.0, PolicySettings(gamma_scale=3.0))
    assert choice.gamma == pytest.approx(3 * math.sqrt(6 / 0.025))
    perfect = choose_gamma(reward, reward, 6.0, PolicySettings())
    assert perfect.excess == 1 / 200


def test_a_worse_oracle_explores_more():
    good, bad = (fit(small_task(), logged(count), PLAN).gamma.gamma for count in (12_000, 800))
    assert good > 1.5 * bad


@pytest.mark.parametrize("kind", ["poisson", "double_or_nothing"])
def test_members_are_trained_on_resampled_rows(kind):
    plan = PLAN.model_copy(update={"member_weights": kind})
    drawn = np.stack([repetitions(20_000, member, plan) for member in (1, 2)])
    np.testing.assert_allclose(drawn.mean(axis=1), 1, atol=0.05)
    np.testing.assert_allclose(drawn.var(axis=1), 1, atol=0.05)
    assert abs(np.corrcoef(drawn)[0, 1]) < 0.03
    np.testing.assert_array_equal(drawn[1], repetitions(20_000, 2, plan))
    if kind == "double_or_nothing":
        assert set(drawn.ravel()) == {0, 2}


def test_a_bagging_policy_counts_its_members_votes():
    settings = PolicySettings(rule="bagging", floor=0.0)
    # Near 0 it is uncertain whether A or B is better, so the members disagree.
    plan = PLAN.model_copy(update={"policy": settings, "members": 7, "tau": (0.0,)})
    e, task = logged(900), small_task()
    trained = fit(task, e, plan)
    given = contexts(400, seed=4)
    pmf, score = trained.evaluate(given)
    votes = np.zeros((400, 3))
    rows = np.concatenate([np.repeat(given, 3, axis=0), np.tile([[0], [1], [2]], (400, 1))], axis=1)
    for member in trained.members:
        scores = member.predict(task.matrix(rows.astype(np.float32))).reshape(400, 3)
        best = scores == scores.max(axis=1, keepdims=True)
        votes += best / best.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(pmf, votes / 7, atol=1e-12)
    assert len(np.unique(pmf)) > 3
    assert trained.policy.voters == 7
    # The expected value is the calibrated score of the oracle, independent of the votes.
    alone = fit(task, e, plan.model_copy(update={"members": 0, "policy": PolicySettings()}))
    np.testing.assert_array_equal(alone.evaluate(given)[1], score)
    assert np.abs(score - crossing(given)).mean() < 0.12


@pytest.mark.parametrize(
    ("rule", "own"),
    [
        ("uniform", {}),
        ("epsilon_greedy", {"epsilon": 0.02}),
        ("softmax", {"inverse_temperature": 100.0}),
        ("squarecb", {"gamma": 9.0}),
        ("fastcb", {"gamma": 9.0}),
        ("loss_ratio", {"exponent": 100.0}),
        ("loss_ratio", {"exponent": 100.0}),
        ("bagging", {"voters": 4}),
    ],
)
def test_a_policy_has_only_the_settings_of_its_rule(rule, own):
    spec = policy_spec(PolicySettings(rule=rule), 9.0, 4, "salt")
    every = ("epsilon", "inverse_temperature", "gamma", "exponent", "voters")
    assert {name: value for name in every if (value := getattr(spec, name)) is not None} == own
    assert spec.salt != policy_spec(PolicySettings(rule=rule), 9.0, 4, "other").salt
    judging = judging_spec(PolicySettings(rule=rule), 5.0)
    assert judging.rule == ("epsilon_greedy" if rule == "bagging" else rule)


def test_the_logs_of_the_helper_match_their_description():
    e = logged(4_000, pmf=skewed)
    np.testing.assert_allclose(np.bincount(e.action) / 4_000, skewed(e.context).mean(axis=0), atol=0.03)
    np.testing.assert_array_equal(e.propensity, skewed(e.context)[np.arange(4_000), e.action])
    assert even(2).tolist() == [[1 / 3] * 3] * 2
