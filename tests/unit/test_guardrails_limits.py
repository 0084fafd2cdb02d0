"""Tests of fraud-rate and retry limits: exactly at the limit, one above, one below."""

from __future__ import annotations

import pytest

from scorer.learn.errors import DataError
from scorer.learn.guardrails.retries import DAY_MS, HOUR_MS, RetryLedger
from scorer.learn.guardrails.tra import (
    TRANSFERS,
    Quarter,
    TraSettings,
    assess,
    largest_amount,
    rules_for,
    rules_text,
)


def quarters(*basis_points: float) -> list[Quarter]:
    total = 10_000_000_000
    return [
        Quarter(f"{2026 + i // 4}-Q{i % 4 + 1}", total, round(total * points / 10_000))
        for i, points in enumerate(basis_points)
    ]


@pytest.mark.parametrize(
    ("basis_points", "amount"),
    [(0.5, 500), (1, 500), (1.0001, 250), (6, 250), (6.0001, 100), (13, 100), (13.0001, 0)],
)
def test_each_amount_requires_its_rate_and_an_equal_rate_is_allowed(basis_points, amount):
    assert largest_amount(assess(quarters(basis_points))) == amount


def test_one_cent_above_the_reference_rate_is_above():
    at = Quarter("2026-Q1", 1_000_000, 1_300)
    above = Quarter("2026-Q1", 1_000_000, 1_301)
    assert largest_amount(assess([at])) == 100
    assert largest_amount(assess([above])) == 0


@pytest.mark.parametrize(
    ("rates", "amount"),
    [
        ((1, 2), 500),  # one quarter above the rate is reported, and the exemption is kept
        ((1, 2, 2), 250),  # two consecutive quarters end the exemption
        ((1, 2, 1, 2), 500),  # not consecutive
        ((1, 2, 2, 1), 500),  # one quarter within the rate restores the exemption
        ((1, 2, 2, 1, 2), 500),
        ((1, 7, 7), 100),
        ((1, 14, 14), 0),
        ((1, 14, 14, 5), 250),
    ],
)
def test_two_consecutive_quarters_end_an_exemption_and_one_restores_it(rates, amount):
    assert largest_amount(assess(quarters(*rates))) == amount


def test_the_first_quarter_above_the_rate_must_be_reported():
    highest = assess(quarters(1, 2))[-1]
    assert highest.allowed
    assert highest.report
    assert "2.00 of 1 bp" in highest.why
    assert not assess(quarters(1, 1))[-1].report


def test_transfers_have_separate_rates():
    settings = TraSettings(bands=TRANSFERS)
    assert largest_amount(assess(quarters(0.5), settings)) == 500
    assert largest_amount(assess(quarters(1.5), settings)) == 100
    assert largest_amount(assess(quarters(1.6), settings)) == 0


@pytest.mark.parametrize(
    "given",
    [
        [],
        [Quarter("2026-Q2", 1, 0), Quarter("2026-Q1", 1, 0)],
        [Quarter("2026-Q1", 1, 0)] * 2,
        [Quarter("2026-Q1", 1, 2)],
    ],
)
def test_invalid_quarters_are_refused(given):
    with pytest.raises(DataError, match="TRA"):
        assess(given)


def test_limits_are_converted_to_rules():
    import numpy as np

    from scorer.bundle import Action, Feature
    from scorer.bundle.rules import BundleRules, CompiledRules, compile_action_rules

    tables = rules_for({"A": 250.0, "B-1": 30.1}, factor="exemption", value="tra")
    actions = [
        Action(id=f"{e}-{r}", factors={"exemption": e, "route": r})
        for e in ("none", "tra")
        for r in ("A", "B-1")
    ]
    text = 'name = "tra"\n' + rules_text(tables)
    rules = compile_action_rules(BundleRules(text), [Feature(name="amount")], actions)
    assert isinstance(rules, CompiledRules), rules
    assert [rule.id for rule in rules.rules] == ["risk_analysis_route_A", "risk_analysis_route_B_1"]
    assert "EUR 30.1" in (rules.rules[1].source or "")
    rows = np.array([[30.1], [30.11], [250.0], [250.01], [np.nan]], dtype=np.float32)
    mask = rules.eligibility(rows).mask
    assert mask[:, :2].all()
    assert mask[:, 2:].tolist() == [
        [True, True],
        [True, False],
        [True, False],
        [False, False],
        [False, False],
    ]
    with pytest.raises(DataError, match="rename one"):
        rules_for({"A-1": 100.0, "A 1": 100.0}, factor="exemption", value="tra")


def tried(ledger: RetryLedger, times, scheme: str, codes=("51",), amount=1_000) -> None:
    for at in times:
        ledger.declined("card", scheme, at, amount_cents=amount, codes=codes)


def allowed(ledger: RetryLedger, now: int, scheme: str, amount: int = 1_000) -> bool:
    return ledger.may_retry("card", scheme, now, amount_cents=amount).allowed


def test_visa_allows_the_fifteenth_reattempt_and_refuses_the_sixteenth():
    ledger = RetryLedger()
    for attempt in range(15):
        tried(ledger, [attempt * HOUR_MS], "visa")
        assert allowed(ledger, attempt * HOUR_MS + 1, "visa"), f"re-attempt {attempt + 1}"
    tried(ledger, [15 * HOUR_MS], "visa")
    answer = ledger.may_retry("card", "visa", 16 * HOUR_MS, amount_cents=1_000)
    assert not answer.allowed
    assert "15 reattempts in 720 hours" in answer.why
    assert "Visa" in answer.why


def test_the_window_of_visa_moves():
    ledger = RetryLedger()
    tried(ledger, [i * HOUR_MS for i in range(16)], "visa")
    end = 30 * DAY_MS
    # The first decline leaves the window. The other fifteen are still counted as re-attempts.
    assert not allowed(ledger, end + 1, "visa")
    # The second one leaves it too, and fourteen remain.
    assert not allowed(ledger, HOUR_MS + end - 1, "visa")
    assert allowed(ledger, HOUR_MS + end, "visa")


def test_an_approval_ends_the_series_of_visa():
    ledger = RetryLedger()
    tried(ledger, range(16), "visa")
    assert not allowed(ledger, 20, "visa")
    ledger.approved("card", "visa", amount_cents=1_000)
    assert allowed(ledger, 20, "visa")


@pytest.mark.parametrize("code", ["04", "07", "41", "43", "R1"])
def test_visa_category_1_is_never_attempted_again(code):
    ledger = RetryLedger()
    tried(ledger, [0], "visa", codes=(code,))
    ledger.approved("card", "visa", amount_cents=1_000)
    assert ledger.forget(10**15) == 0
    for now in (1, 31 * DAY_MS, 3650 * DAY_MS):
        assert not allowed(ledger, now, "visa")
    assert not allowed(ledger, 1, "visa", amount=5), "independent of the amount"
    assert ledger.may_retry("other", "visa", 1, amount_cents=1_000).allowed


def test_mastercard_allows_ten_declines_a_day_and_thirty_five_a_month():
    ledger = RetryLedger()
    tried(ledger, range(9), "mastercard")
    assert allowed(ledger, 10, "mastercard")
    tried(ledger, [9], "mastercard")
    assert not allowed(ledger, 10, "mastercard")
    assert not allowed(ledger, DAY_MS - 1, "mastercard")
    assert allowed(ledger, DAY_MS, "mastercard"), "the first of ten attempts was exactly a day ago"
    assert allowed(ledger, 10, "mastercard", amount=999), "another amount counts as another payment"
    month = RetryLedger()
    tried(month, [i * DAY_MS // 2 for i in range(34)], "mastercard")
    assert allowed(month, 17 * DAY_MS, "mastercard")
    tried(month, [17 * DAY_MS], "mastercard")
    assert not allowed(month, 17 * DAY_MS + 1, "mastercard")
    assert (
        "35 declines in 720 hours"
        in month.may_retry("card", "mastercard", 18 * DAY_MS, amount_cents=1_000).why
    )


@pytest.mark.parametrize("code", ["MAC03", "MAC21"])
def test_the_advice_of_mastercard_holds_for_thirty_days(code):
    ledger = RetryLedger()
    tried(ledger, [0], "mastercard", codes=("05", code))
    assert not allowed(ledger, 30 * DAY_MS - 1, "mastercard")
    assert allowed(ledger, 30 * DAY_MS, "mastercard")


def test_replayed_and_late_declines_count_once_and_in_order():
    ledger, replayed = RetryLedger(), RetryLedger()
    times = [5, 3, 9, 1, 7, 3, 5, 0, 2, 4]
    tried(ledger, sorted(set(times)), "mastercard")
    tried(replayed, times * 3, "mastercard")
    assert len(set(times)) == 8
    assert allowed(replayed, 10, "mastercard")
    tried(replayed, [11, 12], "mastercard")
    assert not allowed(replayed, 13, "mastercard")


def test_other_schemes_have_no_limits_and_old_cards_are_removed():
    ledger = RetryLedger()
    tried(ledger, range(100), "cartes_bancaires", codes=("04",))
    assert allowed(ledger, 200, "cartes_bancaires")
    assert len(ledger) == 0
    tried(ledger, range(10), "mastercard")
    assert ledger.forget(9) == 0
    assert ledger.forget(10) == 1
    assert len(ledger) == 0
