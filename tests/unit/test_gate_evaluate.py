"""Tests of gate results for broken models, for too few rows, and for the live bundle itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadtests import gates as calibration
from loadtests import windows
from scorer.bundle.statistics import distribution
from scorer.release.gates.defaults import ACTION, SCORE
from scorer.release.gates.evaluate import evaluate
from scorer.release.gates.evidence import Counter, Observed, ShadowEvidence
from scorer.release.gates.interim import between, prefixes
from scorer.release.gates.measured import Measured
from scorer.release.model import GateResult, GateSpec, Outcome
from scorer.release.readout.canary import measure_canary

PASS, FAIL, INCONCLUSIVE = Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE


def random(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def judged(evidence: ShadowEvidence, *specs: GateSpec) -> dict[str, GateResult]:
    return {result.metric: result for result in evaluate(specs or SCORE, evidence)}


def blocking(evidence: ShadowEvidence) -> dict[str, Outcome]:
    return {name: result.outcome for name, result in judged(evidence).items() if result.blocks}


def changed(evidence: ShadowEvidence, change: Callable[[Observed], Observed]) -> ShadowEvidence:
    return replace(evidence, shadow=change(evidence.shadow))


# --- each fault fails its gate and no other ---


def test_the_live_bundle_passes() -> None:
    assert blocking(windows.same_bundle(5_000, random())) == {}


def test_a_model_that_exceeds_its_sla_fails() -> None:
    evidence = windows.same_bundle(5_000, random())
    result = blocking(changed(evidence, lambda rows: replace(rows, exec_us=rows.exec_us * 20)))
    assert result == {"exec_p99_us": FAIL}


def test_a_model_whose_features_take_too_long_fails() -> None:
    evidence = windows.same_bundle(5_000, random())
    result = blocking(changed(evidence, lambda rows: replace(rows, load_us=rows.load_us * 100)))
    assert result == {"data_load_p99_us": FAIL}


def test_a_model_that_returns_nan_fails() -> None:
    evidence = windows.same_bundle(5_000, random())

    def broken(rows: Observed) -> Observed:
        score, error = rows.score.copy(), rows.error.copy()
        score[::500], error[::500] = np.nan, 2
        score[7] = np.inf
        return replace(rows, score=score, error=error)

    results = judged(changed(evidence, broken))
    assert {name for name, one in results.items() if one.blocks} == {"error_rate"}
    assert results["error_rate"].outcome is FAIL
    assert results["error_rate"].value == pytest.approx(11 / 5_000)
    assert "10 non_finite" in results["error_rate"].words
    assert "1 non-finite" in results["error_rate"].words


def test_a_model_that_never_returns_fails() -> None:
    evidence = windows.same_bundle(5_000, random())
    stuck = Counter(1, "live-1", "cr-000001", 10_000, 6_000, 900, 0, 0, 0, 5_000, stuck=True)
    result = judged(replace(evidence, counters=[stuck]))["error_rate"]
    assert result.outcome is FAIL
    assert "stuck on 1 server" in result.words
    assert "900 dropped" in result.words
    assert judged(replace(evidence, counters=[replace(stuck, stuck=False)]))["error_rate"].outcome is PASS


def test_a_model_whose_features_differ_fails() -> None:
    evidence = windows.same_bundle(5_000, random())
    differs = (np.arange(5_000) % 100 == 0).astype(np.int64)
    assert blocking(changed(evidence, lambda rows: replace(rows, differs=differs))) == {
        "feature_parity_rate": FAIL
    }
    assert blocking(changed(evidence, lambda rows: replace(rows, absent=differs))) == {
        "feature_parity_rate": FAIL
    }


def test_a_model_with_shifted_scores_fails() -> None:
    result = blocking(calibration.shifted(5_000, random(), 0.8))
    assert result["score_psi"] is FAIL
    assert set(result) <= {"score_psi", "flip_rate", "approve_rate_delta", "flagged_share_change"}


def test_a_model_with_other_decisions_on_the_same_scores_fails() -> None:
    evidence = windows.same_bundle(5_000, random())

    def stricter(rows: Observed) -> Observed:
        return replace(rows, label=1 + np.searchsorted((0.02, 0.5), rows.score, side="right"))

    result = blocking(changed(evidence, stricter))
    assert result == {"flip_rate": FAIL, "approve_rate_delta": FAIL, "flagged_share_change": FAIL}


def _rare(rows: int, random: np.random.Generator, own: Callable[[Any], Any]) -> ShadowEvidence:
    """Return a window in which live flags about 2 %, and a bundle with scores derived from live's."""
    live = windows.fraud_scores(rows, random, shift=-1.5)
    shadow = windows.observed(rows, random, live=live, own=own(live))
    reference = distribution(windows.fraud_scores(5_000, random, shift=-1.5))
    evidence = windows.same_bundle(rows, random)
    return replace(evidence, shadow=shadow, control=windows.twin(shadow, random), reference=reference)


def _noisy(size: float, random: np.random.Generator) -> Callable[[Any], Any]:
    def own(live: Any) -> Any:
        return 1 / (1 + np.exp(-(np.log(live / (1 - live)) + random.normal(0, size, len(live)))))

    return own


def test_a_model_of_permuted_labels_is_stopped_by_what_it_no_longer_flags() -> None:
    evidence = _rare(10_000, random(), random(2).permutation)
    assert 0.01 < float((evidence.shadow.live_label != 1).mean()) < 0.03
    stopped = {name for name, outcome in blocking(evidence).items() if outcome is FAIL}
    assert stopped == {"flagged_agreement", "declined_kept", "tail_correlation"}
    words = judged(evidence)["flagged_agreement"].words
    assert "that live flags" in words and "chance finds" in words


@pytest.mark.parametrize("name", ["constant", "turned around", "another scale", "another seed"])
def test_agreement_compares_rankings(name: str) -> None:
    makers: dict[str, tuple[Callable[[Any], Any], Outcome]] = {
        "constant": (lambda live: np.full(len(live), 0.01), FAIL),
        "turned around": (lambda live: live.max() + live.min() - live, FAIL),
        "another scale": (lambda live: live**2 / 4, PASS),
        "another seed": (_noisy(0.3, random(3)), PASS),
    }
    own, outcome = makers[name]
    result = judged(_rare(10_000, random(), own))["flagged_agreement"]
    assert result.outcome is outcome, result.words


def test_a_monotone_rescaling_passes_and_its_psi_is_shown_for_information() -> None:
    evidence = _rare(10_000, random(), lambda live: live**0.5)
    # The bands of the bundle are chosen for its scores.
    own = 1 + np.searchsorted(np.sqrt(windows.THRESHOLDS), evidence.shadow.score, side="right")
    evidence = replace(evidence, shadow=replace(evidence.shadow, label=own))
    evidence = replace(evidence, reference=distribution(evidence.shadow.score))
    assert blocking(evidence) == {}
    assert "PSI of the scores against live" in judged(evidence)["tail_correlation"].words


@pytest.mark.parametrize(("factor", "outcome"), [(0.5, FAIL), (2.0, FAIL), (1.0, PASS)])
def test_a_factor_on_the_score_is_stopped_by_the_share_that_it_flags(factor: float, outcome: Outcome) -> None:
    evidence = _rare(20_000, random(), lambda live: np.minimum(factor * live, 1))
    assert judged(evidence)["flagged_share_change"].outcome is outcome
    assert judged(evidence)["flagged_agreement"].outcome is PASS


def test_the_message_gives_the_decisions_that_are_swapped_in_and_out() -> None:
    evidence = _rare(20_000, random(), _noisy(0.5, random(3)))
    words = judged(evidence)["flagged_share_change"].words
    live, own = evidence.shadow.live_label > 1, evidence.shadow.label > 1
    assert f"{int((own & ~live).sum()):,} are flagged in addition" in words
    assert f"{int((live & ~own).sum()):,} no longer" in words


def test_few_flagged_requests_give_no_verdict_on_a_ranking() -> None:
    result = judged(_rare(300, random(), random(2).permutation))["flagged_agreement"]
    assert result.outcome is INCONCLUSIVE and not result.blocks, result.words
    assert "flagged_rows" in result.words


def test_a_checkpoint_with_other_labels_has_no_flagged_decisions() -> None:
    evidence = replace(_rare(10_000, random(), random(2).permutation), approve="accept")
    assert not judged(evidence)["flagged_agreement"].blocks


def test_a_model_that_is_not_the_logged_one_fails() -> None:
    evidence = replace(windows.same_bundle(5_000, random()), parity=(2_000, 0.01))
    assert blocking(evidence) == {"parity_max_abs": FAIL}
    assert blocking(replace(evidence, parity=(2_000, float("inf")))) == {"parity_max_abs": FAIL}


# --- too little evidence is inconclusive ---


@pytest.mark.parametrize("rows", [0, 1, 20, 100])
def test_few_rows_never_pass_and_never_fail(rows: int) -> None:
    results = judged(windows.same_bundle(rows, random()))
    assert {one.outcome for one in results.values() if not one.dry_run} <= {INCONCLUSIVE, PASS}
    waiting = {name for name, one in results.items() if one.outcome is INCONCLUSIVE and not one.dry_run}
    assert waiting >= {"exec_p99_us", "error_rate", "score_psi", "flip_rate", "approve_rate_delta"}


def test_few_hours_are_inconclusive() -> None:
    (result,) = evaluate([GateSpec("covered_hours_of_week", ">= 168")], windows.same_bundle(5_000, random()))
    assert (result.outcome, result.value) == (INCONCLUSIVE, 1.0)
    week = windows.observed(20_000, random(), minutes=7 * 24 * 60)
    whole = replace(windows.same_bundle(10, random()), shadow=week)
    (result,) = evaluate([GateSpec("covered_hours_of_week", ">= 168")], whole)
    assert result.outcome is PASS


def test_a_small_psi_on_too_few_rows_does_not_pass() -> None:
    gate = GateSpec("score_psi", "< threshold(floor=0.1)")
    few, many = (judged(windows.same_bundle(n, random(3)), gate)["score_psi"] for n in (150, 3_000))
    assert few.value is not None
    assert few.value < few.threshold  # type: ignore[operator]
    assert few.outcome is INCONCLUSIVE
    assert "chance alone reaches" in few.words
    assert many.outcome is PASS
    assert many.threshold == 0.1


def test_without_a_control_flips_cannot_be_distinguished_from_noise() -> None:
    evidence = windows.same_bundle(5_000, random())
    alone = replace(evidence, control=evidence.control.take(slice(0, 0)))
    result = judged(alone)["flip_rate"]
    assert result.outcome is INCONCLUSIVE
    assert "A/A control" in result.words


def test_flips_are_counted_beyond_the_controls_on_the_same_requests() -> None:
    evidence = windows.same_bundle(5_000, random())
    rows = np.arange(5_000)
    noisy = replace(evidence.control, label=np.where(rows % 25 == 0, 2, 1 + (evidence.control.label > 9)))
    plain = replace(evidence.shadow, live_label=np.ones(5_000, np.int64))
    own = replace(plain, label=np.where((rows % 25 == 0) | (rows % 50 == 1), 2, 1))
    control = replace(noisy, live_label=np.ones(5_000, np.int64))
    order = np.random.default_rng(5).permutation(5_000)
    result = judged(
        replace(evidence, shadow=own, control=control.take(order)),
        GateSpec("flip_rate", "<= 0.05 upper95", minus="aa_control"),
    )["flip_rate"]
    assert result.value == pytest.approx(0.02)
    # The rows are compared in pairs. With two separate samples the bound would be 0.027.
    assert 0.015 < result.low < 0.02 < result.high < 0.025  # type: ignore[operator]
    assert "control flips 4.00 %" in result.words


# --- rules for outcomes ---


@pytest.mark.parametrize(
    ("hits", "rows", "outcome"),
    [(0, 400, PASS), (8, 400, INCONCLUSIVE), (40, 400, FAIL), (0, 50, INCONCLUSIVE), (13, 400, INCONCLUSIVE)],
)
def test_bounds_decide_if_the_gate_requests_them(hits: int, rows: int, outcome: Outcome) -> None:
    evidence = windows.same_bundle(rows, random())
    shadow = replace(evidence.shadow, error=(np.arange(rows) < hits).astype(np.int64))
    (result,) = evaluate([GateSpec("error_rate", "<= 2% upper95")], replace(evidence, shadow=shadow))
    assert result.outcome is outcome, result.words
    if outcome is PASS:
        assert result.high <= 0.02  # type: ignore[operator]


@pytest.mark.parametrize(("factor", "outcome"), [(0.5, PASS), (1.0, INCONCLUSIVE), (2.0, FAIL)])
def test_a_p99_near_its_sla_is_inconclusive(factor: float, outcome: Outcome) -> None:
    evidence = windows.same_bundle(3_000, random())
    sla = float(np.quantile(evidence.shadow.exec_us, 0.99)) / factor
    (result,) = evaluate([GateSpec("exec_p99_us", "<= sla")], replace(evidence, sla_us=sla))
    assert result.outcome is outcome
    assert result.threshold == pytest.approx(sla)


def test_immature_labels_do_not_block() -> None:
    evidence = windows.same_bundle(5_000, random())
    result = judged(evidence)["auc_matured"]
    assert result.outcome is INCONCLUSIVE
    assert not result.blocks
    assert "labels_matured is 0" in result.words


def test_a_worse_ranking_fails_and_the_same_one_passes() -> None:
    evidence = windows.same_bundle(20_000, random())
    fraud = random(4).random(20_000) < evidence.shadow.live_score
    matured = replace(
        evidence,
        outcomes={"fraud": (evidence.shadow.key[fraud], np.ones(fraud.sum()))},
        matured_before=int(evidence.shadow.at.max()) + 1,
    )
    assert judged(matured)["auc_matured"].outcome is PASS
    blind = changed(matured, lambda rows: replace(rows, score=random(5).random(20_000)))
    result = judged(blind)["auc_matured"]
    assert result.outcome is FAIL
    assert result.value == pytest.approx(-0.3, abs=0.15)


def test_dry_run_and_waivers_are_shown_and_do_not_block() -> None:
    evidence = replace(windows.same_bundle(5_000, random()), parity=(2_000, 0.01))
    spec = GateSpec("parity_max_abs", "<= 1e-6", dry_run=True)
    (dry,) = evaluate([spec], evidence)
    assert (dry.outcome, dry.blocks) == (FAIL, False)
    waived = evaluate([replace(spec, dry_run=False)], evidence, waivers={"parity_max_abs": ("mei", "known")})
    assert (waived[0].outcome, waived[0].blocks, waived[0].waived_by) == (FAIL, False, "mei")


def test_the_same_evidence_gives_the_same_messages() -> None:
    assert judged(windows.same_bundle(3_000, random(8))) == judged(windows.same_bundle(3_000, random(8)))


def test_action_bundles_have_separate_gates() -> None:
    from readouts import actions

    evidence = actions(8_000)
    results = {one.metric: one for one in evaluate(ACTION, evidence)}
    assert {one.outcome for one in results.values() if not one.dry_run} == {PASS}
    starved = replace(evidence.shadow, least=np.full(8_000, 1e-9))
    far = replace(evidence.shadow, distance=evidence.shadow.distance + 0.5)
    worse = replace(evidence.shadow, ratio=np.where(evidence.outcomes["authorised"][1] > 0, 0.8, 1.6))
    for shadow, metric in (
        (starved, "min_propensity"),
        (far, "policy_distance"),
        (worse, "expected_reward_delta"),
    ):
        result = {one.metric for one in evaluate(ACTION, replace(evidence, shadow=shadow)) if one.blocks}
        assert result == {metric}


def test_the_reward_of_another_policy_is_estimated_by_propensities() -> None:
    from readouts import actions

    evidence = actions(200_000)
    rng = random(11)
    # Two actions. The live policy draws the good one half of the time, and the other policy nine times
    # out of ten.
    good = rng.random(200_000) < 0.5
    paid = (rng.random(200_000) < np.where(good, 0.9, 0.7)).astype(float)
    shadow = replace(evidence.shadow, ratio=np.where(good, 0.9, 0.1) / 0.5)
    result = evaluate(
        [GateSpec("expected_reward_delta", ">= -0.01 lower95")],
        replace(evidence, shadow=shadow, outcomes={"authorised": (shadow.key, paid)}),
    )[0]
    assert result.value == pytest.approx(0.08, abs=0.004)
    # With the mean as control variate, only the difference of the policies remains: 0.0012 instead of 0.005.
    assert result.value - result.low < 0.002  # type: ignore[operator]


# --- several interim analyses ---


def test_intervals_fail_only_beyond_their_limit() -> None:
    rows = 6_000
    evidence = windows.same_bundle(rows, random())
    start = int(evidence.shadow.at.min())
    spec = GateSpec(
        "error_rate", "== 0", interval_seconds=300, count=10, failure_limit=1, inconclusive_limit=1
    )

    def bad(intervals: int) -> GateResult:
        hit = (evidence.shadow.at - start) // 300_000_000 < intervals
        shadow = replace(evidence.shadow, error=hit.astype(np.int64))
        return evaluate([spec], replace(evidence, shadow=shadow))[0]

    assert [bad(n).outcome for n in (0, 1, 2)] == [PASS, PASS, FAIL]
    assert "2 failed" in bad(2).words
    early = between(evidence, start, start + 1_500_000_000)
    assert evaluate([spec], early)[0].outcome is INCONCLUSIVE
    # Intervals without rows are unknown.
    gap = evidence.shadow.take((evidence.shadow.at - start) // 300_000_000 % 3 > 0)
    gapped = replace(gap, at=np.where(np.arange(len(gap)) == 0, start, gap.at))
    strict = replace(spec, min_rows=10)
    assert evaluate([strict], replace(evidence, shadow=gapped))[0].outcome is INCONCLUSIVE


def test_interim_analyses_depend_on_the_number_of_rows_and_not_on_time() -> None:
    evidence = windows.same_bundle(1_000, random())
    whole = [len(one.shadow) for one in prefixes(evidence)]
    assert whole == [200, 300, 450, 675]
    more = [len(one.shadow) for one in prefixes(windows.same_bundle(1_020, random()))]
    assert more == [200, 300, 450, 675, 1012]


def test_interim_analyses_share_the_false_alarm_rate_of_their_gate() -> None:
    requests: list[float] = []

    def bounds(confidence: float) -> tuple[float, float]:
        requests.append(confidence)
        return 0.0, 1.0

    def measured(name: str, evidence: ShadowEvidence, against: str, minus: bool) -> Measured:
        return Measured(0.5, len(evidence.shadow), bounds)

    specs = [GateSpec("exec_p99_us", "<= 0.5 us upper95"), GateSpec("flip_rate", "<= 0.5 upper95")]
    evaluate(specs, windows.canary(500, random()), repeated=True, measured_by=measured)
    # Two gates share 2 %, and the three analyses (200, 300 and 450 rows) of each gate share that.
    # Passing needs 95 %.
    each = [0.95, 1 - 0.01 / 2, 0.95, 1 - 0.01 / 6, 0.95, 1 - 0.01 / 12]
    assert requests == pytest.approx(each * 2)


def test_a_failed_interim_analysis_is_final() -> None:
    evidence = windows.canary(3_000, random(2))
    slow = evidence.shadow.exec_us.copy()
    slow[:450] *= 40
    broken = replace(evidence, shadow=replace(evidence.shadow, exec_us=slow))
    spec = [GateSpec("exec_p99_us", "<= sla")]
    (now,) = evaluate(spec, broken, repeated=True, measured_by=measure_canary)
    assert now.outcome is FAIL
    assert now.rows < 1_000


def test_a_shifted_canary_fails_and_an_unshifted_one_does_not() -> None:
    def failed(evidence: ShadowEvidence) -> set[str]:
        return {one.metric for one in calibration.canary_judged(evidence) if one.outcome is FAIL}

    assert failed(windows.canary(5_000, random(3), shift=1.0)) >= {"score_psi"}
    assert failed(windows.canary(5_000, random(3))) == set()
    few = calibration.canary_judged(windows.canary(100, random(3), shift=1.0))
    assert {one.outcome for one in few} == {INCONCLUSIVE}


# --- calibration; `make bench-gates` runs all of it ---


@pytest.mark.parametrize(
    ("case", "rows", "count"),
    [(0, 100, 150), (0, 1_000, 150), (1, 300, 150), (2, 1_000, 150), (3, 1_000, 100)],
)
def test_the_live_bundle_rarely_fails(case: int, rows: int, count: int) -> None:
    _, make, judge = calibration.CASES[case]
    alarms = calibration.alarms(rows, count, make, judge, salt=1)
    assert alarms.rate <= 2.0, alarms.by_gate


def test_the_rule_of_thumb_raises_alarms_that_the_gates_do_not() -> None:
    _, make, judge = calibration.CASES[0]
    alarms = calibration.alarms(100, 100, make, judge, salt=2)
    assert alarms.thumb > 10
    assert alarms.failed <= 2


def test_larger_shifts_are_detected_earlier() -> None:
    sizes = (0.3, 0.6, 1.2)
    few, many = (calibration.least_found(n, 10, calibration.shifted, sizes) for n in (1_000, 10_000))
    assert many is not None
    assert few is not None
    assert many <= few


def test_a_small_canary_passes_by_its_pairs_and_fails_by_its_own_rows() -> None:
    def outcomes(evidence: ShadowEvidence, settled: set[str]) -> dict[str, Outcome]:
        return {one.metric: one.outcome for one in calibration.canary_judged(evidence, settled=settled)}

    pairs = {"score_psi", "approve_rate_delta"}
    thin = windows.canary(1_000, random(3))
    assert INCONCLUSIVE in outcomes(thin, set()).values()
    assert set(outcomes(thin, pairs).values()) == {PASS}
    # Latencies are compared with the rows of the lane only, and too few rows are inconclusive.
    assert outcomes(windows.canary(100, random(3)), {*pairs, "exec_p99_us"})["exec_p99_us"] is INCONCLUSIVE
    assert outcomes(windows.canary(5_000, random(3), shift=1.0), pairs)["score_psi"] is FAIL
