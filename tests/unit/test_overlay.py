"""Tests of the overlay: it finds changes, is not biased by early outcomes, bounded, removed after harm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from examples.simulators.actions import codes
from examples.simulators.outcomes import as_of, decide
from examples.simulators.payments import ISSUER_NAMES, baseline_pmf
from examples.simulators.task import authorise_task
from examples.simulators.weeks import Market, WeeksPlan
from scorer.bundle.models import OverlaySpec
from scorer.learn.errors import DataError
from scorer.learn.experience import State
from scorer.learn.logistic import sigmoid
from scorer.learn.overlay.delays import Delays
from scorer.learn.overlay.design import Design, adjusted, logit, offsets
from scorer.learn.overlay.guard import Guard, cusum
from scorer.learn.overlay.learner import OverlayLearner
from scorer.learn.overlay.posterior import Outcomes, Posterior
from scorer.learn.overlay.settings import OverlaySettings
from scorer.learn.overlay.stream import fit

TASK = authorise_task()
DESIGN = Design(TASK, "issuer")
PLAN = OverlaySettings(every_minutes=240, everywhere=0.3, within=0.4)


class Week:
    """Eight days of decisions of the baseline, with every probability that the evaluation needs."""

    def __init__(self) -> None:
        self.market = Market(WeeksPlan(per_hour=80), seed=11)
        arrivals = self.market.days(0, 8)
        self.truth = self.market.truth(arrivals)
        self.log = decide(
            self.market, arrivals, baseline_pmf(arrivals.contexts), "baseline", truth=self.truth
        )
        self.chosen = self.truth[np.arange(len(self.log)), self.log.action]
        self.issuer = DESIGN.codes(self.log.context)
        self.end = self.market.plan.start_ms + 8 * 86_400_000


@pytest.fixture(scope="module")
def week() -> Week:
    return Week()


def planted(seed: int, scale: float = 0.5) -> np.ndarray:
    """Return offsets `[segments + 1, K]` of factors and issuers."""
    rng = np.random.default_rng(seed)
    own = rng.normal(0, scale, (len(ISSUER_NAMES) + 1, len(DESIGN.levels)))
    own[-1] = 0
    return own @ DESIGN.membership.T


def test_offsets_equal_those_of_the_format():
    spec = OverlaySpec(
        segment="issuer",
        limit=1.0,
        everywhere={"route": {"A": 0.25}, "retry": {"no": -0.5}},
        segments={"NL-bank-1": {"route": {"A": 0.5, "B": -3.0}}},
    )
    context = np.zeros((4, len(TASK.context)), dtype=np.float32)
    context[:, DESIGN.column] = [0, 1, np.nan, 99]
    result = offsets(spec, TASK, context)
    for k, action in enumerate(TASK.actions):
        route, retry = action.factors["route"], action.factors["retry"]
        everywhere = 0.25 * (route == "A") - 0.5 * (retry == "no")
        here = everywhere + {"A": 0.5, "B": -3.0}.get(route, 0.0)
        expected = [everywhere, max(here, -1.0), everywhere, everywhere]
        np.testing.assert_allclose(result[:, k], expected)
    assert not offsets(None, TASK, context).any()
    np.testing.assert_allclose(
        adjusted(np.array([0.0, 0.5, 1.0]), 1.0), [0, sigmoid(np.array(1.0)), 1], atol=1e-8
    )


def test_the_posterior_mode_equals_that_of_a_general_optimiser():
    rng = np.random.default_rng(2)
    m, membership = 400, np.array([[1, 0, 1], [0, 1, 1], [1, 0, 0], [0, 1, 0]], dtype=float)
    seen = Outcomes(
        segment=rng.integers(0, 3, m),
        action=rng.integers(0, 4, m),
        logit=rng.normal(1, 1, m),
        reward=(rng.random(m) < 0.4).astype(float),
        weight=rng.uniform(0.5, 2, m),
    )
    first, second = (
        Outcomes(*(c[part] for c in vars(seen).values())) for part in (slice(150), slice(150, None))
    )
    belief = Posterior.vague(3, 3, 0.5, 0.7).updated(seen, membership)

    def loss(flat: np.ndarray) -> float:
        theta = flat.reshape(4, 3)
        x = seen.logit + ((theta[0] + theta[1:]) @ membership.T)[seen.segment, seen.action]
        prior = (theta[0] ** 2).sum() / 0.25 + (theta[1:] ** 2).sum() / 0.49
        return float(seen.weight @ (np.logaddexp(0, x) - seen.reward * x) + prior / 2)

    best = minimize(loss, np.zeros(12), method="BFGS", options={"gtol": 1e-8}).x.reshape(4, 3)
    np.testing.assert_allclose(belief.mean, best, atol=1e-5)
    # A fit in two parts gives almost the same result: the likelihood of the first part is approximated
    # by a Gaussian.
    parts = Posterior.vague(3, 3, 0.5, 0.7).updated(first, membership).updated(second, membership)
    np.testing.assert_allclose(parts.mean, best, atol=0.05)
    # If everything is forgotten, only the prior remains. If half is forgotten, the result is in between.
    none, half = belief.forgotten(np.zeros(4)), belief.forgotten(np.full(4, 0.5))
    np.testing.assert_allclose(none.mean, 0, atol=1e-12)
    np.testing.assert_allclose(none.own, Posterior.vague(3, 3, 0.5, 0.7).own)
    assert 0 < np.linalg.norm(half.mean) < np.linalg.norm(belief.mean)


def test_planted_offsets_are_recovered(week):
    """The oracle lacks the planted offsets, and the overlay must recover them."""
    table = planted(1)
    scores = sigmoid(logit(week.chosen) - table[week.issuer, week.log.action])
    result = fit(as_of(week.log, week.end), scores, TASK, PLAN, week.end)
    assert result.spec is not None
    served = offsets(result.spec, TASK, week.log.context)[np.arange(len(week.log)), week.log.action]
    wanted = table[week.issuer, week.log.action]
    left = np.sqrt(np.mean((served - wanted) ** 2))
    assert left < 0.35 * np.sqrt(np.mean(wanted**2))
    assert result.learner.gain > 100
    # Without planted offsets, the overlay is small.
    calm = fit(as_of(week.log, week.end), week.chosen, TASK, PLAN, week.end)
    quiet = offsets(calm.spec, TASK, week.log.context)[np.arange(len(week.log)), week.log.action]
    assert np.sqrt(np.mean(quiet**2)) < 0.2


def test_served_offsets_are_bounded(week):
    wrong = np.where(week.log.reward == 1, 1e-4, 1 - 1e-4)
    plan = OverlaySettings(every_minutes=240, everywhere=5, within=5, limit=1.5)
    fitted = fit(as_of(week.log, week.end), np.nan_to_num(wrong, nan=0.5), TASK, plan, week.end)
    served = offsets(fitted.spec, TASK, week.log.context)
    assert np.abs(served).max() == 1.5


def challenges(week: Week, hours: float, plan: OverlaySettings):
    """Fit on the last `hours`, with many outcomes in flight and the true probabilities as the oracle."""
    log = as_of(week.log, week.end)
    scores = np.where(log.time_ms >= week.end - hours * 3_600_000, week.chosen, np.nan)
    return fit(log, scores, TASK, plan, week.end)


def test_early_outcomes_of_three_ds_cause_no_bias(week):
    """The newest hour is evaluated at many times. The true probabilities need no offset."""
    challenge = codes()[:, 0] == 2
    delays = Delays.measured(as_of(week.log, week.end), TASK, week.end, factor="three_ds")
    log, now = week.log, week.log.time_ms + 30 * 60_000
    # Half an hour after each challenge: only known outcomes, or outcomes in flight counted as lost.
    of_kind = challenge[log.action] & (log.state == State.SETTLED)
    early = of_kind & (log.settled_ms <= now)
    fair = delays.admitted(log)
    fair_kind = challenge[log.action[fair.row]]

    def bias(rows: np.ndarray, weight: np.ndarray, reward: np.ndarray) -> float:
        return float(weight @ (reward - week.chosen[rows]) / weight.sum())

    rows = np.flatnonzero(early)
    naive = bias(rows, np.ones(len(rows)), log.reward[rows])
    rows = np.flatnonzero(of_kind)
    slander = bias(rows, np.ones(len(rows)), np.where(early[rows], log.reward[rows], 0.0))
    rows = fair.row[fair_kind]
    ours = bias(rows, fair.weight[fair_kind], log.reward[rows])
    assert naive > 0.1
    assert slander < -0.1
    assert abs(ours) < 0.03
    # The weights give the number of observed outcomes. The weights of a guard are at most 1.
    np.testing.assert_allclose(
        fair.weight[fair_kind].sum() ** 2 / (fair.weight[fair_kind] ** 2).sum(),
        fair.weight[fair_kind].sum(),
        rtol=0.1,
    )
    assert fair.share.max() == 1.0


def test_the_set_of_counted_decisions_does_not_depend_on_the_time_of_the_fit(week):
    delays = Delays.measured(as_of(week.log, week.end), TASK, week.end, factor="three_ds")
    noon = week.end - 30 * 3_600_000
    then, later = delays.admitted(as_of(week.log, noon)), delays.admitted(week.log)
    known = later.at_ms <= noon
    assert np.array_equal(later.row[known], then.row[then.at_ms <= noon])
    assert np.array_equal(later.weight[known], then.weight[then.at_ms <= noon])
    assert (week.log.settled_ms[later.row] <= later.at_ms).all()


def test_training_decisions_of_the_oracle_do_not_count(week):
    log = as_of(week.log, week.end)
    scores = np.where(log.time_ms < week.end - 48 * 3_600_000, np.nan, 0.5)
    result = fit(log, scores, TASK, PLAN, week.end)
    newest = int((log.time_ms >= week.end - 48 * 3_600_000).sum())
    assert 0.5 * newest < result.learner.outcomes < newest
    nothing = fit(log, np.full(len(log), np.nan), TASK, PLAN, week.end)
    assert nothing.spec is None


def garbage(seed: int, m: int, right: bool, actions: int = 132):
    """Return outcomes of a correct oracle, or of one whose log-odds are 1.5 too low."""
    rng = np.random.default_rng(seed)
    x = rng.normal(1.5, 0.7, m)
    return Outcomes(
        segment=rng.integers(0, len(ISSUER_NAMES), m),
        action=rng.integers(0, actions, m),
        logit=x,
        reward=(rng.random(m) < sigmoid(x if right else x + 1.5)).astype(float),
        weight=np.ones(m),
    )


def test_harm_switches_the_overlay_off_and_benefit_switches_it_on_again():
    learner = OverlayLearner(DESIGN, OverlaySettings(half_life_outcomes=1e9, half_life_hours=1e9))
    learner.learn(garbage(1, 3_000, right=False), np.ones(3_000), 0)
    assert learner.spec() is not None
    # The oracle was correct, so the learned offset is harmful, although its posterior is narrow.
    learner.learn(garbage(2, 300, right=True), np.ones(300), 60_000)
    assert learner.spec() is None
    assert not learner.table.any()
    assert learner.guard.switched == 1
    learner.learn(garbage(3, 300, right=False), np.ones(300), 120_000)
    assert learner.spec() is not None


def test_old_evidence_does_not_compensate_current_harm():
    """The closed form of the detector equals the recursion max(0, so far) + step."""
    steps = np.random.default_rng(1).normal(-0.2, 1, 400)
    for start in (0.0, 2.5):
        so_far, path = start, []
        for step in steps:
            so_far = max(0.0, so_far) + step
            path.append(so_far)
        end, peak = cusum(start, steps)
        assert end == pytest.approx(path[-1])
        assert peak == pytest.approx(max(path))
    guard = Guard(harm=1000.0)
    guard.watch(np.full(5_000, 0.9), np.full(5_000, 0.6), np.ones(5_000))
    guard.watch(np.full(30, 0.1), np.full(30, 0.4), np.ones(30))
    assert not guard.on


def test_a_segment_is_switched_off_separately():
    learner = OverlayLearner(DESIGN, OverlaySettings(half_life_outcomes=1e9, half_life_hours=1e9))
    taught, rng = garbage(1, 6_000, right=True), np.random.default_rng(0)
    reward = np.where(taught.segment == 3, rng.random(6_000) < 0.2, taught.reward)
    learner.learn(replace(taught, reward=reward), np.ones(6_000), 0)
    # The issuer that declined no longer declines.
    for tick in range(1, 3):
        learner.learn(garbage(100 + tick, 100, right=True), np.ones(100), tick)
    assert learner.off == (ISSUER_NAMES[3],)
    spec = learner.spec()
    assert spec is not None
    assert ISSUER_NAMES[3] not in spec.segments
    np.testing.assert_allclose(DESIGN.table(spec), learner.table, atol=1e-5)


def test_a_changed_segment_is_detected_and_its_old_evidence_is_discarded():
    """After a long time without declines an issuer declines.

    A single posterior needs much longer to follow.
    """
    followed = {}
    for quicker in (8.0, 1.001):
        plan = OverlaySettings(half_life_hours=1e9, half_life_outcomes=20_000, quicker=quicker)
        learner, rng = OverlayLearner(DESIGN, plan), np.random.default_rng(0)
        for tick in range(20):
            learner.learn(garbage(tick, 5_000, right=True, actions=4), np.ones(5_000), tick)
        assert learner.changes == 0
        for tick in range(20, 40):
            some = garbage(tick, 240, right=True, actions=4)
            reward = np.where(some.segment == 3, rng.random(240) < 0.2, some.reward)
            learner.learn(replace(some, reward=reward), np.ones(240), tick)
        followed[quicker] = learner.table[3, :4].mean()
        assert (learner.changes > 0) is (quicker > 2)
        others = np.delete(learner.table[:-1, :4].mean(axis=1), 3)
        assert np.abs(others).max() < 0.5
    assert followed[8.0] < 1.5 * followed[1.001] < 0


def test_a_transferred_segment_keeps_its_offsets_and_a_valid_precision():
    rng, members = np.random.default_rng(4), np.array([[1.0, 0], [0, 1], [1, 1]])
    beliefs = []
    for m in (200, 60):
        seen = Outcomes(
            rng.integers(0, 3, m),
            rng.integers(0, 3, m),
            rng.normal(0, 1, m),
            rng.integers(0, 2, m) * 1.0,
            np.ones(m),
        )
        beliefs.append(Posterior.vague(3, 2, 0.5, 0.5).updated(seen, members).forgotten(np.full(4, 0.9)))
    old, new = beliefs
    mixed = old.segment_from(new, 1)
    np.testing.assert_allclose(mixed.mean[0] + mixed.mean[2], new.mean[0] + new.mean[2])
    np.testing.assert_array_equal(np.delete(mixed.mean, 2, axis=0), np.delete(old.mean, 2, axis=0))

    def dense(belief: Posterior) -> np.ndarray:
        whole = np.zeros((8, 8))
        for i in range(4):
            whole[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = belief.own[i]
            if i:
                whole[:2, 2 * i : 2 * i + 2] = belief.cross[i - 1]
                whole[2 * i : 2 * i + 2, :2] = belief.cross[i - 1].T
        return whole

    assert np.linalg.eigvalsh(dense(mixed)).min() > 0
    # The offset of all segments is as certain as before.
    np.testing.assert_allclose(
        np.linalg.inv(dense(mixed))[:2, :2], np.linalg.inv(dense(old))[:2, :2], atol=1e-9
    )


def test_a_correct_overlay_is_rarely_switched_off():
    """On average at most once in 1,000 outcomes, which is less than 10 % of the runs over 100 outcomes."""
    rng, alarms = np.random.default_rng(5), 0
    for _ in range(400):
        p = rng.uniform(0.6, 0.95, 100)
        other = sigmoid(logit(p) + rng.normal(0, 0.7, 100))
        worked = rng.random(100) < p
        guard = Guard(harm=1000.0)
        guard.watch(np.where(worked, p, 1 - p), np.where(worked, other, 1 - other), rng.uniform(0.2, 1, 100))
        alarms += not guard.on
    assert alarms <= 40
    # The same evidence with the opposite sign is harm, and is detected.
    guard.watch(np.where(worked, other, 1 - other) * 0.5, np.where(worked, p, 1 - p), np.ones(100))
    assert not guard.on


def test_logs_that_cannot_be_fitted_are_refused(week):
    log = as_of(week.log, week.end)
    with pytest.raises(DataError, match='segment "amount" is not a category'):
        Design(TASK, "amount")
    with pytest.raises(DataError, match='factor "colour"'):
        fit(log, week.chosen, TASK, OverlaySettings(family="colour"), week.end)
    with pytest.raises(DataError, match="older than 72 hours"):
        fit(log.take(slice(-50, None)), week.chosen[-50:], TASK, OverlaySettings(), week.end)
