"""Tests of cap prices against linear programming and brute force, and of their controller over time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from logged import two_actions_logged

from scorer.bundle import Action, PolicySpec
from scorer.learn.errors import DataError
from scorer.learn.guardrails.caps import solve_caps
from scorer.learn.guardrails.controller import CapState, ControllerSettings, control, windows_of

SALT = "0" * 32
K = 6
CHALLENGE = np.array([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
COST = np.array([0.02, 0.08, 0.01, 0.10, 0.03, 0.005])
ACTIONS = [Action(id=f"a{i}", attributes={"challenge": CHALLENGE[i], "cost": COST[i]}) for i in range(K)]


def world(seed: int, n: int = 400):
    rng = np.random.default_rng(seed)
    # The capped actions have the highest rewards, because otherwise no cap would be active.
    scores = np.clip(rng.normal(0.7, 0.1, (n, K)) + 0.08 * CHALLENGE + 1.0 * COST, 0.01, 0.99)
    eligible = rng.random((n, K)) < 0.7
    eligible[:, 2] = True
    return scores, eligible


def softmax(scores, eligible, beta):
    odds = np.where(eligible, np.exp(beta * (scores - scores.max())), 0.0)
    return odds / odds.sum(axis=1, keepdims=True)


def test_an_attribute_within_its_limit_has_no_price():
    scores, eligible = world(1)
    spec = PolicySpec(rule="softmax", inverse_temperature=40, salt=SALT)
    solved = solve_caps(spec, ACTIONS, scores, eligible, {"challenge": 0.99, "cost": 0.2})
    assert solved.prices == (0.0, 0.0)
    assert solved.use == solved.unpriced
    assert solved.value == solved.unpriced_value


@pytest.mark.parametrize("seed", range(3))
def test_one_price_equals_that_of_a_brute_force_search(seed):
    scores, eligible = world(seed)
    spec = PolicySpec(rule="softmax", inverse_temperature=40, salt=SALT)
    solved = solve_caps(spec, ACTIONS, scores, eligible, {"challenge": 0.25})
    assert 0.25 * (1 - 1e-4) <= solved.use[0] <= 0.25
    grid = np.linspace(0, 0.5, 5_001)
    uses = [softmax(scores - price * CHALLENGE, eligible, 40).mean(axis=0) @ CHALLENGE for price in grid]
    least = grid[int(np.argmax(np.array(uses) <= 0.25))]
    assert solved.prices[0] == pytest.approx(least, abs=2e-4)
    slope = (uses[int(least * 10_000) - 50] - uses[int(least * 10_000) + 50]) / 0.01
    assert solved.sensitivity[0] == pytest.approx(slope, rel=0.1)


def test_two_prices_are_solved_jointly():
    scores, eligible = world(5)
    spec = PolicySpec(rule="softmax", inverse_temperature=40, salt=SALT)
    limits = {"challenge": 0.25, "cost": 0.03}
    solved = solve_caps(spec, ACTIONS, scores, eligible, limits)
    assert min(solved.prices) > 0
    for use, limit in zip(solved.use, limits.values(), strict=True):
        assert limit * (1 - 1e-4) <= use <= limit
    # The dual function of softmax is convex. Both limits are met at its minimum, which a grid search finds.
    a, b = solved.prices
    best = min(
        itertools.product(np.linspace(0.5 * a, 1.5 * a, 41), np.linspace(0.5 * b, 1.5 * b, 41)),
        key=lambda p: dual(scores, eligible, p, limits),
    )
    assert best == pytest.approx((a, b), rel=0.05)


def dual(scores, eligible, prices, limits):
    priced = scores - prices[0] * CHALLENGE - prices[1] * COST
    free = np.log(np.where(eligible, np.exp(40 * (priced - 1)), 0).sum(axis=1)).mean() / 40
    return free + sum(p * limit for p, limit in zip(prices, limits.values(), strict=True))


@pytest.mark.parametrize("seed", range(2))
def test_greedy_under_caps_is_the_linear_programs_optimum(seed):
    from scipy.optimize import linprog

    scores, eligible = world(seed, n=300)
    limits = {"challenge": 0.2, "cost": 0.03}
    spec = PolicySpec(rule="epsilon_greedy", epsilon=0.0, salt=SALT)
    solved = solve_caps(spec, ACTIONS, scores, eligible, limits)
    assert all(use <= limit for use, limit in zip(solved.use, limits.values(), strict=True))
    n = len(scores)
    rows = np.kron(np.eye(n), np.ones(K))
    best = linprog(
        -np.where(eligible, scores, 0).ravel() / n,
        A_ub=np.stack([np.tile(CHALLENGE, n), np.tile(COST, n)]) / n,
        b_ub=list(limits.values()),
        A_eq=rows,
        b_eq=np.ones(n),
        bounds=[(0, float(e)) for e in eligible.ravel()],
    )
    # A greedy policy cannot split a decision, which may cost two of 300.
    assert -best.fun - 2 / n <= solved.value <= -best.fun + 1e-9


@pytest.mark.parametrize(
    "spec",
    [
        {"rule": "squarecb", "gamma": 300},
        {"rule": "fastcb", "gamma": 300},
        {"rule": "epsilon_greedy", "epsilon": 0.1, "floor": 0.02},
    ],
)
def test_every_rule_meets_its_limits(spec):
    scores, eligible = world(9, n=2_000)
    limits = {"challenge": 0.3, "cost": 0.035}
    solved = solve_caps(PolicySpec(**spec, salt=SALT), ACTIONS, scores, eligible, limits, tolerance=1e-3)
    for use, limit, price in zip(solved.use, limits.values(), solved.prices, strict=True):
        assert use <= limit
        assert price == 0 or use >= limit * (1 - 5e-3)
    assert [cap.limit for cap in solved.caps()] == [0.3, 0.035]


def test_a_start_from_the_live_prices_gives_the_result_of_a_cold_start():
    scores, eligible = world(5)
    spec = PolicySpec(rule="softmax", inverse_temperature=40, salt=SALT)
    limits = {"challenge": 0.25, "cost": 0.03}
    cold = solve_caps(spec, ACTIONS, scores, eligible, limits)
    for start in ({"challenge": 0.5, "cost": 2.0}, dict(zip(limits, cold.prices, strict=True))):
        warm = solve_caps(spec, ACTIONS, scores, eligible, limits, start=start)
        assert warm.prices == pytest.approx(cold.prices, rel=0.01)


def test_scores_of_ineligible_actions_have_no_effect():
    scores, eligible = world(5)
    spec = PolicySpec(rule="softmax", inverse_temperature=40, salt=SALT)
    blank = np.where(eligible, scores, np.nan)
    limits = {"challenge": 0.25}
    assert solve_caps(spec, ACTIONS, blank, eligible, limits) == solve_caps(
        spec, ACTIONS, scores, eligible, limits
    )


def test_a_limit_that_no_price_can_meet_is_refused():
    scores, eligible = world(1)
    floor = PolicySpec(rule="epsilon_greedy", epsilon=0.0, action_floors={"a0": 0.3}, salt=SALT)
    with pytest.raises(DataError, match=r'cap "challenge": 0\.05 cannot be met: 0\.2'):
        solve_caps(floor, ACTIONS, scores, eligible, {"challenge": 0.05})
    with pytest.raises(DataError, match="no action has this attribute"):
        solve_caps(floor, ACTIONS, scores, eligible, {"chalenge": 0.5})
    with pytest.raises(DataError, match="no decisions"):
        solve_caps(floor, ACTIONS, scores[:0], eligible[:0], {"challenge": 0.5})


def run(state: CapState, taste, settings, windows: int, rows: int = 500):
    """Simulate a use that falls with the price; `taste(window)` shifts it."""
    rng = np.random.default_rng(0)
    means, states = [], []
    for window in range(windows):
        gain = rng.normal(taste(window), 0.05, rows)
        use = float((1 / (1 + np.exp(-60 * (gain - state.price)))).mean())
        (state,) = control([state], [(window, rows, {"challenge": use})], settings)
        means.append(use)
        states.append(state)
    return np.array(means), states


SOLVED = CapState("challenge", limit=0.3, price=0.05, sensitivity=6.0)


def trailing(means, period):
    return np.convolve(means, np.ones(period) / period, mode="valid")


@pytest.mark.parametrize("jump", [0.03, 0.06, -0.03, 0.08])
@pytest.mark.parametrize("wrong", [0.5, 1.0, 2.0])
def test_the_band_is_kept_after_a_step_although_the_sensitivity_is_wrong_by_a_factor_of_two(jump, wrong):
    settings = ControllerSettings()
    start = CapState("challenge", 0.3, 0.05, SOLVED.sensitivity * wrong)
    means, states = run(start, lambda w: 0.02 + (jump if w >= 120 else 0.0), settings, 360)
    held = trailing(means, settings.period)
    assert held.max() <= 0.3 * (1 + settings.band)
    assert not any(state.violated(settings) for state in states)
    # The controller must use the allowance. A controller that never challenges satisfies every cap.
    assert means[-96:].mean() == pytest.approx(0.3 * (1 - settings.margin), rel=0.03)
    # Without the controller, the same change would have exceeded the band.
    if jump > 0:
        frozen, _ = run(
            states[119], lambda w: 0.02 + jump, settings.model_copy(update={"least_rows": 10**9}), 30
        )
        assert frozen.mean() > 0.3 * (1 + settings.band)


def test_a_price_at_zero_does_not_wind_up():
    settings = ControllerSettings()
    means, states = run(SOLVED, lambda w: -0.2 if w < 200 else 0.08, settings, 260)
    assert states[199].price == 0
    assert trailing(means[180:], settings.period).max() <= 0.3 * (1 + settings.band)


def test_overuse_is_compensated():
    settings = ControllerSettings()
    aim = SOLVED.limit * (1 - settings.margin)
    even = CapState("challenge", 0.3, 0.05, 6.0, recent=((500, aim),) * 10)
    over = CapState("challenge", 0.3, 0.05, 6.0, recent=((500, 0.6),) + ((500, aim),) * 9)
    assert even.step(500, aim, settings).price == pytest.approx(0.05)
    assert over.step(500, aim, settings).price == pytest.approx(
        0.05 + settings.integral * (0.6 - aim) / settings.repay / 6.0
    )


def test_the_price_rises_faster_while_the_use_does_not_fall():
    settings, state = ControllerSettings(price_limit=10.0), SOLVED
    moves = []
    for _ in range(4):
        after = state.step(500, 0.33, settings)
        moves.append(after.price - state.price)
        state = after
    assert all(later > 3 * earlier for earlier, later in itertools.pairwise(moves))
    below = state.step(500, 0.25, settings)
    assert 0 < state.price - below.price <= max(0.25 * 0.3 / 6.0, 0.05 * state.price) + 1e-12


def test_steps_are_bounded_and_saturation_is_reported():
    settings = ControllerSettings(price_limit=0.06)
    states = run(SOLVED, lambda w: 0.5, settings, 120)[1]
    moves = np.abs(np.diff([0.05, *(state.price for state in states)]))
    assert moves.max() <= settings.max_rise * 0.3 / 6.0 + 1e-12
    assert states[-1].price == 0.06
    assert states[-1].saturated
    assert states[-1].violated(settings)


def test_windows_with_few_rows_change_no_price_but_are_counted():
    settings = ControllerSettings(period=1)
    after = SOLVED.step(99, 1.0, settings)
    assert (after.price, after.recent) == (SOLVED.price, ((99, 1.0),))
    assert after.violated(settings)
    assert SOLVED.step(100, 1.0, settings).price > SOLVED.price


def test_the_use_of_a_window_is_the_mean_of_its_pmfs():
    pmf = [[0.25, 0.75], [0.5, 0.5], [1.0, 0.0]]
    logged = two_actions_logged([[1, 1]] * 3, pmf, [1, 0, 0], time_ms=[0, 59_000, 60_000])
    first, second = windows_of(logged, {"c": np.array([0.0, 2.0])}, window_minutes=1)
    assert first == (0, 2, {"c": pytest.approx(1.25)})
    assert second == (60_000, 1, {"c": 0.0})
