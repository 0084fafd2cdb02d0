"""Tests of off-policy estimators on small enumerable worlds, and of properties for every log."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.learn import ope
from scorer.learn.errors import DataError
from scorer.learn.ope.intervals import moments


def every_log(logging, truth, n):
    """Yield all logs of `n` rows over contexts 0..n-1 with their probabilities."""
    actions = range(logging.shape[1])
    for taken in itertools.product(actions, repeat=n):
        for rewards in itertools.product((0.0, 1.0), repeat=n):
            chance = 1.0
            for row, (action, reward) in enumerate(zip(taken, rewards, strict=True)):
                p = truth[row, action]
                chance *= logging[row, action] * (p if reward else 1 - p)
            yield np.array(taken), np.array(rewards), chance


WORLD = {
    "logging": np.array([[0.7, 0.2, 0.1], [0.25, 0.5, 0.25]]),
    "truth": np.array([[0.9, 0.4, 0.6], [0.3, 0.8, 0.1]]),
    "pmf": np.array([[0.1, 0.1, 0.8], [0.6, 0.3, 0.1]]),
}
VALUE = float((WORLD["pmf"] * WORLD["truth"]).sum(axis=1).mean())


def target(action, reward, logging=WORLD["logging"], pmf=WORLD["pmf"], model=None, **more):
    logged = ope.Logged(
        action=action, reward=reward, propensity=logging[np.arange(len(action)), action], pmf=logging, **more
    )
    return ope.Target(logged, pmf, model)


@pytest.mark.parametrize("model", [None, np.full((2, 3), 0.5), np.array([[0.1, 0.9, 0.3], [0.2, 0.2, 1.0]])])
@pytest.mark.parametrize("weights", ["actions", "balanced"])
def test_the_expected_estimate_is_the_value_with_any_model(model, weights):
    expected = total = 0.0
    for action, reward, chance in every_log(WORLD["logging"], WORLD["truth"], 2):
        given = target(action, reward, model=model)
        if weights == "balanced":
            # Two policies with one row each are evaluated on both rows. Neither row was drawn from their
            # mixture, so the estimate is unbiased only over the assignment of rows to policies. With the same
            # policy twice it is exact.
            given = ope.balanced(given, [WORLD["logging"], WORLD["logging"]], [1, 1])
        estimate = ope.ipw(given) if model is None else ope.dr(given)
        expected += chance * estimate.value
        total += chance
    assert total == pytest.approx(1.0)
    assert expected == pytest.approx(VALUE, abs=1e-12)


def test_balanced_weights_are_unbiased_over_two_loggers_and_vary_less():
    """The contexts are equal, so the rows are exchangeable. Logger A fills two rows, and logger B one."""
    truth = np.array([0.9, 0.4])
    a, b, pi = np.array([0.9, 0.1]), np.array([0.2, 0.8]), np.array([0.3, 0.7])
    logging = np.stack([a, a, b])
    pmf, world = np.tile(pi, (3, 1)), np.tile(truth, (3, 1))
    plain, balanced, value = [], [], float(pi @ truth)
    chances = []
    for action, reward, chance in every_log(logging, world, 3):
        result = target(action, reward, logging, pmf)
        plain.append(ope.ipw(result).value)
        both = ope.balanced(result, [np.tile(a, (3, 1)), np.tile(b, (3, 1))], [2, 1])
        balanced.append(ope.ipw(both).value)
        chances.append(chance)
    assert np.dot(chances, plain) == pytest.approx(value)
    assert np.dot(chances, balanced) == pytest.approx(value)
    assert np.dot(chances, np.square(balanced)) < 0.6 * np.dot(chances, np.square(plain))


FACTORS = np.array(list(itertools.product((0, 1), (0, 1, 2))))


def factored(seed, product):
    rng = np.random.default_rng(seed)
    parts = rng.dirichlet([1, 1]), rng.dirichlet([1, 1, 1])
    logging = np.outer(*parts).ravel() if product else rng.dirichlet(np.ones(6))
    return logging[None], rng.dirichlet(np.ones(6))[None], rng


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("product", [True, False])
def test_the_pseudo_inverse_is_exact_for_additive_rewards(seed, product):
    logging, pmf, rng = factored(seed, product)
    truth = rng.random(2)[FACTORS[:, 0]] + rng.random(3)[FACTORS[:, 1]]
    result = target(np.array([0]), np.array([0.0]), logging, pmf)
    weights = ope.additive(result, FACTORS).other_weights
    assert float((logging * weights * truth).sum()) == pytest.approx(float((pmf * truth).sum()))
    if product:
        members = [np.eye(int(codes.max()) + 1)[codes] for codes in FACTORS.T]
        shares = [(pmf @ one, logging @ one, one) for one in members]
        closed = -1 + sum((ours / theirs) @ one.T for ours, theirs, one in shares)
        np.testing.assert_allclose(closed, weights, atol=1e-9)
    # This does not hold for a reward with an interaction, because the estimator is not plain weighting.
    odd = truth + np.where((FACTORS == [1, 2]).all(axis=1), 1.0, 0.0)
    assert abs(float((logging * weights * odd).sum()) - float((pmf * odd).sum())) > 1e-3


def test_the_pseudo_inverse_evaluates_actions_that_were_never_logged():
    """The target chooses an action that was never logged, although both of its levels were."""
    logging = np.array([[0.5, 0.0, 0.2, 0.0, 0.3, 0.0]])
    pmf = np.array([[0, 0, 0, 0, 0, 1.0]])
    result = target(np.array([0]), np.array([1.0]), logging, pmf)
    assert ope.diagnose(result).outside == 1
    with pytest.raises(DataError, match="on 1 of 1 rows the log lacks a factor level"):
        ope.additive(result, FACTORS)
    logging = np.array([[0.4, 0.2, 0.2, 0.2, 0.0, 0.0]])
    result = target(np.array([0]), np.array([1.0]), logging, pmf)
    truth = np.array([0.1, 0.3])[FACTORS[:, 0]] + np.array([0.2, 0.4, 0.6])[FACTORS[:, 1]]
    weights = ope.additive(result, FACTORS).other_weights
    assert float((logging * weights * truth).sum()) == pytest.approx(0.9)


@pytest.mark.parametrize("seed", range(5))
def test_marginal_weights_are_exact_if_only_those_factors_matter_and_vary_less(seed):
    logging, pmf, rng = factored(seed, product=False)
    result = target(np.array([0]), np.array([0.0]), logging, pmf)
    truth = rng.random(3)[FACTORS[:, 1]]
    weights = ope.marginal(result, FACTORS[:, 1:]).other_weights
    assert float((logging * weights * truth).sum()) == pytest.approx(float((pmf * truth).sum()))
    plain = pmf / logging
    assert float((logging * weights**2).sum()) <= float((logging * plain**2).sum()) + 1e-12
    # Over all factors, they equal the plain weights.
    np.testing.assert_allclose(ope.marginal(result, FACTORS).other_weights, plain)


def random_log(seed, n=40, actions=4):
    rng = np.random.default_rng(seed)
    logging = rng.dirichlet(np.ones(actions), n) * 0.9 + 0.1 / actions
    pmf = rng.dirichlet(np.ones(actions), n)
    action = (np.cumsum(logging, axis=1) < rng.random((n, 1))).sum(axis=1).clip(max=actions - 1)
    reward = (rng.random(n) < 0.7).astype(float)
    return target(action, reward, logging, pmf, rng.random((n, actions)))


SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_estimators_are_equal_in_their_limiting_cases(seed):
    target = random_log(seed)
    logged, n = target.logged, len(target.logged)
    nothing = ope.Target(logged, target.pmf, np.zeros_like(target.pmf))
    assert ope.dr(nothing).value == pytest.approx(ope.ipw(target).value)
    assert ope.sndr(nothing).value == pytest.approx(ope.snipw(target).value)
    assert ope.switch_dr(target, 0.0).value == pytest.approx(ope.dm(target).value)
    assert ope.switch_dr(target, np.inf).value == pytest.approx(ope.dr(target).value)
    assert ope.dr_os(target, np.inf).value == pytest.approx(ope.dr(target).value)
    assert ope.dr_os(target, 0.0).value == pytest.approx(ope.dm(target).value)
    assert ope.ipw(ope.logged_target(target)).value == pytest.approx(logged.reward.mean())
    assert ope.dr(ope.logged_target(target)).value == pytest.approx(
        np.mean((logged.pmf * target.model).sum(axis=1) + logged.reward - target.predicted)
    )
    for estimate in (
        ope.ipw(target, 3.0),
        ope.snipw(target),
        ope.dr(target),
        ope.sndr(target),
        ope.dr_os(target, 9.0),
    ):
        assert estimate.pseudo.mean() == pytest.approx(estimate.value)
        assert len(estimate.pseudo) == n
        assert estimate.low <= min(max(estimate.value, 0.0), 1.0) <= estimate.high


@given(SEEDS, st.floats(-3, 3))
@settings(max_examples=40, deadline=None)
def test_a_shift_of_rewards_shifts_the_self_normalised_estimates_and_their_intervals(seed, shift):
    target = random_log(seed)
    moved = ope.Logged(target.logged.action, target.logged.reward + shift, target.logged.propensity)
    before, after = ope.snipw(ope.Target(_bare(target), target.pmf)), ope.snipw(ope.Target(moved, target.pmf))
    assert after.value == pytest.approx(before.value + shift)
    assert after.width == pytest.approx(before.width)
    assert ope.ipw(ope.Target(moved, target.pmf)).value == pytest.approx(
        ope.ipw(target).value + shift * target.weight.mean()
    )


def _bare(target):
    return ope.Logged(target.logged.action, target.logged.reward, target.logged.propensity)


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_a_difference_is_the_difference_and_swaps_its_ends(seed):
    target = random_log(seed)
    ours, theirs = ope.dr(target), ope.dr(ope.logged_target(target))
    there, back = ope.paired(ours, theirs), ope.paired(theirs, ours)
    assert there.value == pytest.approx(ours.value - theirs.value)
    assert (back.low, back.high) == pytest.approx((-there.high, -there.low))
    none = ope.paired(ours, ours)
    assert (none.value, none.low, none.high) == (0, 0, 0)


def test_estimators_that_need_a_model_refuse_a_log_without_one():
    result = ope.Target(random_log(1).logged, random_log(1).pmf)
    for estimator in (ope.dm, ope.dr, ope.sndr):
        with pytest.raises(DataError, match="needs a reward model"):
            estimator(result)
    with pytest.raises(DataError, match="no weight is left"):
        ope.snipw(
            target(np.zeros(2, int), np.ones(2), np.array([[0.5, 0.5]] * 2), np.array([[0.0, 1.0]] * 2))
        )
    with pytest.raises(DataError, match="the same rows"):
        ope.paired(ope.ipw(random_log(1, 10)), ope.ipw(random_log(1, 20)))


def test_slope_chooses_the_narrowest_agreeing_interval():
    def estimate(value, spread, name):
        pseudo = value + spread * np.tile([-1.0, 1.0], 200)
        return ope.Estimate(value, 0, 1, 400, 400, estimator=name, pseudo=pseudo)

    wide, middle, narrow = estimate(0.5, 2.0, "wide"), estimate(0.55, 0.5, "middle"), estimate(0.9, 0.05, "n")
    assert ope.slope([narrow, wide, middle]).estimate.estimator == "middle"
    assert ope.slope([narrow, wide, middle]).order == (1, 2, 0)
    near = estimate(0.56, 0.05, "near")
    assert ope.slope([near, wide, middle]).estimate.estimator == "near"
    # A disagreement ends the search, although a narrower interval agrees again.
    assert ope.slope([wide, middle, narrow, estimate(0.55, 0.01, "n2")]).estimate.estimator == "middle"


def test_cross_fitting_never_trains_on_the_predicted_row():
    """A learner that memorises its rows predicts nothing for other rows."""
    n = 60
    context = np.arange(n, dtype=np.float32)[:, None]
    rng = np.random.default_rng(0)
    action, reward = rng.integers(0, 3, n), np.ones(n)
    seen = []

    def memory(rows, rewards):
        known = {float(row[0]) for row in rows}
        seen.append(known)
        assert len(rows) == len(rewards)
        return lambda given: np.array([1.0 if float(row[0]) in known else 0.0 for row in given])

    rows = np.eye(3, dtype=np.float32)
    fold = ope.folds_by_time(np.arange(n) * 1000, 3)
    assert ope.cross_fit(context, action, reward, rows, fold=fold, learner=memory).sum() == 0
    assert [len(known) for known in seen] == [40, 40, 40]
    seen.clear()
    forward = ope.cross_fit(context, action, reward, rows, fold=fold, learner=memory, forward=True)
    assert [max(known) for known in seen] == [19, 39]
    assert (forward[:20] == 0.5).all()
    assert (forward[20:] == 0).all()
    with pytest.raises(DataError, match="two folds"):
        ope.cross_fit(context, action, reward, rows, fold=np.zeros(n, int))
    names = np.array(["a", "b", "a", "c", "b"])
    by_name = ope.folds_by_name(names, 3)
    assert by_name[0] == by_name[2]
    assert by_name[1] == by_name[4]
    assert set(by_name.tolist()) <= {0, 1, 2}


def test_trees_learn_effects_of_context_and_action():
    rng = np.random.default_rng(0)
    n = 6_000
    context = rng.integers(0, 2, (n, 1)).astype(np.float32)
    action = rng.integers(0, 2, n)
    truth = np.array([[0.9, 0.5], [0.3, 0.8]])
    reward = (rng.random(n) < truth[context[:, 0].astype(int), action]).astype(float)
    fold = ope.folds_by_time(np.arange(n), 3)
    result = ope.cross_fit(context, action, reward, np.array([[0.0], [1.0]], np.float32), fold=fold)
    assert np.abs(result - truth[context[:, 0].astype(int)]).max() < 0.06


def test_estimated_propensities_are_shares_within_their_cell():
    chosen, cell = np.array([0, 0, 1, 1, 1, 1]), np.array([0, 0, 0, 1, 1, 1])
    taken = ope.estimated_pmf(chosen, cell, 3)[np.arange(6), chosen]
    assert taken.tolist() == pytest.approx([2 / 3, 2 / 3, 1 / 3, 1, 1, 1])
    assert ope.estimated_pmf(chosen, cell, 3)[0].tolist() == pytest.approx([2 / 3, 1 / 3, 0])


def test_the_self_normalised_interval_equals_that_of_the_delta_method():
    target = random_log(3, n=200)
    bare = ope.Target(_bare(target), target.pmf)
    interval, w, r = ope.snipw(bare), target.weight, target.logged.reward
    value = (w * r).sum() / w.sum()
    error = np.sqrt((w**2 * (r - value) ** 2).sum()) / w.sum() * np.sqrt(200 / 199)
    half = scipy.stats.t.ppf(0.975, w.sum() ** 2 / (w**2).sum() - 1) * error
    assert (interval.value, interval.low, interval.high) == pytest.approx((value, value - half, value + half))


@pytest.mark.parametrize("seed", range(3))
def test_designs_have_the_moments_of_their_pseudo_outcomes(seed):
    """The test applies each estimator's formula to every action and reward that a row could have had."""
    target = random_log(seed, n=6, actions=3)
    weights, model, direct = target.pmf / target.logged.pmf, target.model, target.direct[:, None]
    mean, value = target.weight.mean(), ope.snipw(target).value
    offset = (target.weight * (target.logged.reward - target.predicted)).mean() / mean
    switched, shrunk = np.where(weights <= 1.5, weights, 0), 9 * weights / (weights**2 + 9)
    formulas = {
        "IPW": (ope.ipw(target), lambda r: weights * r),
        "IPW(2)": (ope.ipw(target, 2.0), lambda r: np.minimum(weights, 2) * r),
        "SNIPW": (ope.snipw(target), lambda r: value + weights * (r - value) / mean),
        "DR": (ope.dr(target), lambda r: direct + weights * (r - model)),
        "SNDR": (ope.sndr(target), lambda r: direct + offset + weights * (r - model - offset) / mean),
        "Switch-DR(1.5)": (ope.switch_dr(target, 1.5), lambda r: direct + switched * (r - model)),
        "DRos(9)": (ope.dr_os(target, 9.0), lambda r: direct + shrunk * (r - model)),
    }
    for name, (result, formula) in formulas.items():
        assert result.estimator == name
        values = np.stack([formula(0.0), formula(1.0)])
        chances = target.logged.pmf * np.stack([1 - model, model])
        centre = (chances * values).sum(axis=(0, 2))
        within = (chances * (values - centre[None, :, None]) ** 2).sum() / 6
        seen = moments(result.design, 6)
        assert seen.noise + seen.rest == pytest.approx(within + centre.var(ddof=1)), name
        third = (chances * (values - centre.mean()) ** 3).sum() / 6
        assert seen.noise_skew + seen.rest_skew == pytest.approx(third), name
