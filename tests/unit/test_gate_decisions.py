"""Tests of the learning gate on known worlds: better candidates pass, worse ones never do, others wait."""

from __future__ import annotations

import numpy as np
import pytest
from gates import COUNTRIES, FEATURES, START_MS, K, greedy, judged, log, weighed

from scorer.learn.errors import DataError
from scorer.learn.experience import State
from scorer.learn.gate.estimate import mature_window
from scorer.learn.gate.judge import learned_until
from scorer.learn.guardrails.audit import GuardrailFinding
from scorer.learn.guardrails.settings import CapSettings, GuardrailSettings
from scorer.stats.sequences import anytime_mean

FLAT = np.full((len(COUNTRIES), K), 0.7)


def world(*gains: float):
    """Return the true success rates: .70 of route A in every country, and the given rate(s) of route B."""
    truth = FLAT.copy()
    truth[:, 1] += gains if len(gains) > 1 else gains[0]
    return truth


TO_B = greedy(1, 1, 0.3)[0]


def failed(verdict):
    return {check.name for check in verdict.evidence.checks if not check.passed}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("wrong", [0.0, -0.1])
def test_a_better_candidate_is_promoted_with_any_oracle(seed, wrong):
    truth = world(0.15)
    verdict = weighed(log(truth, n=8_000, seed=seed), TO_B, truth, wrong=wrong, segments=("country",))
    assert verdict.evidence.decision == "promote", verdict.evidence.reasons
    assert verdict.evidence.share == 1
    assert verdict.evidence.difference.low > 0
    gain = 0.15 * (TO_B[1] - 0.3 / K)
    assert verdict.evidence.difference.low < gain < verdict.evidence.difference.high


def test_a_worse_candidate_is_never_promoted():
    truth = world(-0.02)
    verdicts = [
        weighed(log(truth, n=3_000, seed=seed), TO_B, truth, wrong=0.1, min_effective=50)
        for seed in range(220)
    ]
    assert {name for one in verdicts for name in failed(one)} == {"value"}, "only the bound decides"
    # The estimate alone, or a bound that is valid for only one analysis, would have passed many of them.
    assert sum(one.evidence.difference.value > -0.005 for one in verdicts) > 10
    assert not [one for one in verdicts if one.evidence.decision == "promote"]


def test_false_promotions_at_the_margin_stay_within_alpha_over_eight_analyses():
    margin = 0.02
    truth = world(-margin / (TO_B[1] - 0.3 / K))
    false = 0
    for seed in range(220):
        logged = log(truth, n=2_400, seed=1_000 + seed)
        looks = (
            weighed(logged.take(slice(0, n)), TO_B, truth, margin=margin, wrong=0.05, min_effective=60)
            for n in range(1_000, 2_401, 200)
        )
        false += any(one.evidence.decision == "promote" for one in looks)
    assert false <= 0.05 * 220


def test_a_candidate_that_is_significantly_worse_gets_no_share():
    truth = world(-0.15)
    verdict = weighed(log(truth, n=8_000, seed=1), TO_B, truth)
    assert verdict.evidence.decision == "wait"
    assert "shown to be worse" in verdict.evidence.reasons[-1]


def test_an_undecided_candidate_gets_the_largest_share_that_is_safe():
    truth = world(0.0)
    verdict = weighed(log(truth, n=6_000, seed=4), TO_B, truth, margin=0.01)
    one = verdict.evidence
    assert one.decision == "mix"
    assert failed(verdict) == {"value"}
    assert one.share * one.difference.low >= -0.01
    larger = min(share for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if share > one.share)
    assert larger * one.difference.low < -0.01
    assert "can be lost" in one.reasons[-1]


def test_too_little_evidence_gives_no_share():
    truth = world(0.15)
    logged = log(truth, n=900, seed=1)
    waits = weighed(logged, TO_B, truth, margin=0.02)
    assert waits.evidence.decision == "wait"
    assert "decisions" in failed(waits)
    # The policies differ in 70 % of the probability mass, so 2 % of the traffic cannot lose 2 points.
    logged = log(truth, n=1_200, seed=1)
    mixes = weighed(logged, TO_B, truth, margin=0.02, bound_effective=1e9)
    assert (mixes.evidence.decision, mixes.evidence.share) == ("mix", 0.02)


def test_few_effective_decisions_do_not_promote():
    truth = world(0.15)
    logged = log(truth, n=8_000, seed=1, epsilon=0.02)
    verdict = weighed(logged, greedy(1, 1, 0.02)[0], truth, min_effective=1_000)
    assert "effective sample" in failed(verdict)
    assert verdict.evidence.decision != "promote"


def test_decisions_that_could_not_be_logged_prevent_a_promotion():
    truth = world(0.15)
    logged = log(truth, n=8_000, seed=1)
    pmf = logged.pmf.copy()
    pmf[:, 4] = 0
    pmf /= pmf.sum(axis=1, keepdims=True)
    taken = logged.action != 4
    object.__setattr__(logged, "pmf", pmf)
    object.__setattr__(logged, "propensity", pmf[np.arange(len(logged)), logged.action].astype(float))
    some = np.array([0.1, 0.8, 0.04, 0.04, 0.02])
    verdict = weighed(logged.take(taken), some, truth, weight_errors=1e9, margin=0.002)
    assert failed(verdict) == {"support"}
    assert verdict.evidence.support == pytest.approx(0.98)
    assert verdict.evidence.decision == "wait"


def test_wrong_propensities_are_detected_and_block():
    truth = world(0.15)
    logged = log(truth, n=8_000, seed=1)
    object.__setattr__(logged, "propensity", np.where(logged.action == 1, 0.5, 1.0) * logged.propensity)
    verdict = weighed(logged, TO_B, truth)
    assert "propensities" in failed(verdict)
    assert verdict.evidence.decision == "wait"


def test_a_harmed_segment_blocks_although_the_total_improves():
    truth = world(0.25, 0.25, 0.25, -0.25)
    logged = log(truth, n=12_000, seed=2)
    verdict = weighed(logged, TO_B, truth, segments=("country",))
    assert verdict.evidence.difference.low > 0
    assert failed(verdict) == {"segments"}
    assert verdict.evidence.decision == "wait"
    assert "harmed: country ES" in verdict.evidence.reasons[0]
    states = {one.value: one.state for one in verdict.evidence.segments}
    assert states == {"NL": "safe", "DE": "safe", "FR": "safe", "ES": "harmed"}
    assert weighed(logged, TO_B, truth).evidence.decision == "promote", (
        "only configured segments are evaluated"
    )


@pytest.mark.parametrize(
    ("epsilon", "n", "oracle"), [(0.3, 2_400, [0.0] * K), (0.02, 3_000, [0, -0.2, 0, 0, 0])]
)
def test_segments_rarely_block_if_none_is_harmed(epsilon, n, oracle):
    """This also holds if the oracle is biased against the candidate and few decisions can contradict it."""
    truth, candidate = world(0.0), greedy(1, 1, epsilon)[0]
    accused = 0
    for seed in range(100):
        logged = log(truth, n=n, seed=seed, epsilon=epsilon)
        verdict = weighed(logged, candidate, truth, wrong=np.array(oracle), segments=("country",))
        accused += "segments" in failed(verdict)
    assert accused <= 0.05 * 100


def test_an_oracle_that_overestimates_does_not_promote_without_evidence_in_the_log():
    truth, candidate = world(-0.05), greedy(1, 1, 0.02)[0]
    flattered = np.array([0, 0.25, 0, 0, 0])
    for seed in range(100):
        verdict = weighed(log(truth, n=1_000, seed=seed, epsilon=0.02), candidate, truth, wrong=flattered)
        assert verdict.evidence.decision != "promote"
        assert verdict.evidence.share <= 0.005 / verdict.evidence.distance


def test_a_small_segment_is_inconclusive_and_does_not_block():
    truth = world(0.25, 0.25, 0.25, -0.25)
    logged = log(truth, n=12_000, seed=2)
    country = logged.context[:, 0]
    few = logged.take((country != 3) | (np.cumsum(country == 3) <= 499))
    verdict = weighed(few, TO_B, truth, segments=("country",))
    assert verdict.evidence.decision == "promote"
    (spain,) = [one for one in verdict.evidence.segments if one.value == "ES"]
    assert (spain.state, spain.difference.low, spain.difference.rows) == ("inconclusive", None, 499)


@pytest.mark.parametrize(("name", "message"), [("merchant", "no column"), ("amount", "is a number")])
def test_segments_must_be_columns_with_values(name, message):
    with pytest.raises(DataError, match=message):
        weighed(log(FLAT, n=100, seed=1), TO_B, FLAT, segments=(name,))
    assert "amount" in {feature.name for feature in FEATURES}


@pytest.mark.parametrize(("limit", "decision"), [(0.21, "promote"), (0.17, "wait")])
def test_a_cap_that_the_candidate_would_exceed_blocks(limit, decision):
    truth = FLAT.copy()
    truth[:, 1] += 0.1
    candidate = np.array([0.1, 0.7, 0.1, 0.0, 0.1])
    guardrails = GuardrailSettings(caps=(CapSettings(attribute="challenge", limit=limit),))
    verdict = weighed(log(truth, n=8_000, seed=1), candidate, truth, guardrails=guardrails)
    assert verdict.evidence.caps[0].candidate.value == pytest.approx(0.2)
    assert verdict.evidence.decision == decision
    if decision == "wait":
        assert failed(verdict) == {"cap challenge"}


def test_an_uncertain_use_is_compared_by_its_upper_bound():
    rng = np.random.default_rng(0)
    logged = log(FLAT, n=1_200, seed=1)
    heavy = rng.random(len(logged)) < 0.2
    candidate = np.where(heavy[:, None], np.array([0, 0, 1.0, 0, 0]), np.array([1.0, 0, 0, 0, 0]))
    guardrails = GuardrailSettings(caps=(CapSettings(attribute="challenge", limit=0.2),))
    verdict = weighed(logged, candidate, FLAT, guardrails=guardrails)
    cap = verdict.evidence.caps[0]
    assert cap.candidate.value < 0.2 * 1.05 < cap.candidate.high
    assert "cap challenge" in failed(verdict)


@pytest.mark.parametrize("missing", [0.05, 0.15])
def test_outcomes_must_have_been_joined(missing):
    truth = world(0.15)
    verdict = weighed(log(truth, n=9_000, seed=1, missing=missing), TO_B, truth)
    assert ("joined" in failed(verdict)) == (missing > 0.1)
    assert verdict.evidence.decision == ("wait" if missing > 0.1 else "promote")


def test_a_candidate_must_state_its_latest_training_decision():
    truth = world(0.15)
    logged = log(truth, n=8_000, seed=1)
    silent = judged("candidate", None)
    verdict = weighed(logged, TO_B, truth, one=silent)
    assert (verdict.evidence.decision, failed(verdict)) == ("wait", {"unseen"})
    assert weighed(logged, TO_B, truth, one=silent, require_lineage=False).evidence.decision == "promote"


def test_rule_violations_in_the_log_block():
    truth = world(0.15)
    findings = [GuardrailFinding("the pmf does not sum to 1", 3, "d17")]
    verdict = weighed(log(truth, n=8_000, seed=1), TO_B, truth, findings=findings)
    assert verdict.evidence.decision == "wait"
    assert verdict.evidence.reasons == ("the pmf does not sum to 1 (3 decisions, first d17)",)


def test_two_equal_policies_have_exactly_the_same_value():
    logged = log(FLAT, n=2_000, seed=1)
    verdict = weighed(logged, logged.pmf[0].astype(float), FLAT)
    assert verdict.evidence.difference.value == 0
    assert verdict.evidence.difference.low == 0
    assert verdict.evidence.decision == "promote"


def test_the_window_is_mature_and_starts_after_the_training_decisions():
    day = 86_400_000
    logged = log(FLAT, n=1_000, seed=1, days=20)
    state = logged.state.copy()
    late = np.searchsorted(logged.time_ms, START_MS + 15 * day)
    state[late + 3] = State.IN_FLIGHT
    object.__setattr__(logged, "state", state)
    window = mature_window(logged, 7, after_ms=0)
    assert window.time_ms[-1] < logged.time_ms[late + 3]
    assert (
        len(window)
        == (
            (logged.time_ms < logged.time_ms[late + 3])
            & (logged.time_ms >= logged.time_ms[late + 3] - 7 * day)
        ).sum()
    )
    assert not (window.state == State.IN_FLIGHT).any()
    taught = int(window.time_ms[10])
    assert mature_window(logged, 7, after_ms=taught).time_ms[0] > taught
    assert len(mature_window(logged, 7, after_ms=int(logged.time_ms[-1]))) == 0


def test_the_latest_training_decision_is_read_from_every_form_of_lineage():
    lineage = {
        "data_digest": "x",
        "metrics": {
            "learning": {"decisions": {"last_ms": 5}},
            "overlay": {"window": {"last_ms": 9}},
            "gate": {"window": {"last_ms": 99}},
        },
    }
    assert learned_until(lineage) == 9
    assert learned_until({"metrics": {}}) is None


def test_the_bound_covers_the_value_at_every_analysis():
    missed = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        values = (rng.random(5_000) < 0.1) * rng.exponential(5.0, 5_000) - 0.5
        missed += any(
            not result.low <= 0.0 <= result.high
            for result in (anytime_mean(values[:n], 0.05) for n in range(500, 5_001, 100))
        )
    assert missed <= 0.05 * 300
    half = anytime_mean(values, 0.05).high - values.mean()
    assert half < 2.2 * 1.96 * values.std() / np.sqrt(5_000), (
        "the interval is valid without being trivially wide"
    )
