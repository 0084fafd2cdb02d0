"""Tests of drift detection on planted changes; `python -m loadtests.drift` is the large version."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from loadtests.drifts import worlds
from loadtests.drifts.measure import FIRST, KINDS, Planted, false_alerts, planted, trips
from loadtests.drifts.payments import CHANGES, PaymentStream
from loadtests.drifts.worlds import WorldPlan
from loadtests.zoo.payments import simulated
from scorer.drift.detection import LeastChange, cumulative, judge
from scorer.drift.settings import WEEK, DetectionSettings

SETTINGS = DetectionSettings()


@pytest.mark.parametrize("kind", KINDS, ids=[one.name for one in KINDS])
def test_planted_changes_are_found_within_the_stated_delay(kind: Planted) -> None:
    found = planted(kind, 5, SETTINGS, seed=3)
    assert found.found == 5, found.delays


def test_stable_features_open_no_alert() -> None:
    assert false_alerts(1, SETTINGS, features=60, seed=1) == 0


def test_changes_of_payments_are_found() -> None:
    stream = PaymentStream(simulated(customers=1_500, days=100), SETTINGS)
    assert len(stream.begins) >= 2
    for change in (CHANGES[0], CHANGES[3], CHANGES[4]):
        found = stream.feature(change)
        assert found.found == len(found.delays), (change.kind, found.delays)
    alerts, _ = stream.false_alerts()
    assert alerts <= 1


def test_an_incident_is_not_reported_again_in_the_weeks_after_it() -> None:
    random = np.random.default_rng(5)
    plan = WorldPlan(FIRST + 6 * WEEK, 1)
    rows, mean = worlds.volumes(plan, random), worlds.means(plan, random)
    begin = FIRST + 40
    mean[begin : begin + 20] += 2
    looks, shifted = trips(worlds.counts_of(rows, mean, random), SETTINGS)
    at = looks[shifted[:, 0]]
    assert begin < at[0] <= begin + 6
    # The window of 24 hours contains it for a day longer.
    assert at[-1] <= begin + 20 + 24 + SETTINGS.of_looks


def test_a_usual_course_of_day_and_week_is_no_shift() -> None:
    random = np.random.default_rng(6)
    plan = WorldPlan(FIRST + 3 * WEEK, 1, wander=0.0)
    hour = np.arange(plan.hours)
    mean = np.where((hour % 24 < 8) ^ (hour // 24 % 7 >= 5), 2.0, -1.0)[:, None]
    _, shifted = trips(worlds.counts_of(worlds.volumes(plan, random), mean, random), SETTINGS)
    assert not shifted.any()


def test_few_rows_or_a_short_history_are_not_judged() -> None:
    random = np.random.default_rng(7)
    counts = random.multinomial(40, np.full(10, 0.1), size=(FIRST + WEEK, 1)).astype(float)
    counts[-24:] = 0
    counts[-24:, :, 0] = 40
    sums = cumulative(counts)
    six, day = judge(sums, np.array([len(counts)]), SETTINGS, 1e-6)
    assert not six.judged.any()
    assert day.shifted.all()
    early = judge(sums, np.array([2 * WEEK]), SETTINGS, 1e-6)
    assert not any(one.judged.any() for one in early)


def test_a_change_of_a_rate_below_the_least_one_is_not_reported() -> None:
    random = np.random.default_rng(8)
    rows = np.full(FIRST + WEEK, 20_000.0)
    for later, expected in ((0.028, False), (0.034, True)):
        share = np.where(np.arange(len(rows)) >= FIRST + 24, later, 0.02)
        counts = worlds.rate_counts(rows, share, random)
        _, shifted = trips(counts, SETTINGS, rate=LeastChange(0.01))
        assert bool(shifted.any()) is expected


@pytest.mark.parametrize(
    ("values", "message"),
    [({"windows_hours": (0, 24)}, "from 1 to 168"), ({"shifted_looks": 4}, "k of m requires k <= m")],
)
def test_impossible_settings_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DetectionSettings.model_validate(values)


def test_the_budget_is_divided_between_all_tests_of_a_month() -> None:
    settings = DetectionSettings(alerts_per_month=0.6, windows_hours=(1, 6, 24))
    assert settings.alpha(200) * 720 * 200 * 4 == pytest.approx(0.6)
