"""Tests of the verdicts of load tests, and of when a pass is proven."""

from __future__ import annotations

import math

import pytest

from scorer.loadtest import LatencySummary, LoadOutcome, Report, judge
from scorer.loadtest.verdict import most_misses_that_prove


def summary(**values):
    zero = {"count": 0, "min": 0, "mean": 0.0, "p50": 0, "p90": 0, "p99": 0, "p999": 0, "max": 0}
    return LatencySummary(**(zero | values))


def report(windows, *, errors=None, fallbacks=None, lag_p99_us=50, interrupted=False):
    """Return the report of a run with windows (intended, misses)."""
    requests = sum(intended for intended, _ in windows)
    errors = errors or {}
    return Report(
        config={},
        requests=requests,
        sent=requests,
        answered=requests - sum(errors.values()),
        misses=sum(misses for _, misses in windows),
        errors=errors,
        fallbacks=fallbacks or {},
        latency_us=summary(),
        model_latency_us=summary(),
        send_lag_us=summary(count=requests, p99=lag_p99_us),
        server_exec_us=summary(),
        curve=(),
        methods=(),
        callers=(),
        cancelled=0,
        windows=[
            {
                "start": float(i),
                "intended": intended,
                "misses": misses,
                "errors": 0,
                "fallbacks": 0,
                "latency_us": summary(),
            }
            for i, (intended, misses) in enumerate(windows)
        ],
        interrupted=interrupted,
    )


def test_an_sla_that_is_met_in_every_window_passes():
    verdict = judge(report([(1000, 10)] * 60), 10.0)
    assert (verdict.outcome, verdict.reasons, verdict.outcome.exit_code) == (LoadOutcome.PASS, (), 0)
    assert (verdict.met_share, verdict.windows_met, verdict.windows) == (0.99, 60, 60)
    # 600 misses of 60,000 are exactly 1 %. The SLA is met in this run, which does not prove it in general.
    assert not verdict.proven
    assert judge(report([(1000, 5)] * 60), 10.0).proven


def test_one_bad_window_of_sixty_is_allowed_and_two_are_not():
    one = judge(report([(1000, 0)] * 59 + [(1000, 11)]), 10.0)
    assert (one.outcome, one.windows_met) == (LoadOutcome.PASS, 59)
    two = judge(report([(1000, 0)] * 58 + [(1000, 11)] * 2), 10.0)
    assert (two.outcome, two.outcome.exit_code) == (LoadOutcome.FAIL, 1)
    assert two.reasons == ("2 of 60 windows missed, more than 1 in 60",)
    # In a short run, no window may miss the SLA.
    assert judge(report([(1000, 0)] * 9 + [(1000, 11)]), 10.0).outcome is LoadOutcome.FAIL


def test_the_total_counts_even_if_most_windows_meet_the_sla():
    verdict = judge(report([(1000, 0)] * 119 + [(1000, 1000), (1000, 1000)]), 10.0)
    assert verdict.outcome is LoadOutcome.FAIL
    assert verdict.reasons[0] == "1.65% of the requests missed, more than 1 % (2000 later than 10 ms)"


def test_an_error_is_a_miss_at_any_latency():
    verdict = judge(report([(100, 5)] * 10, errors={"RESOURCE_EXHAUSTED": 40, "overflow": 10}), 10.0)
    assert verdict.outcome is LoadOutcome.FAIL
    assert "(50 not answered: RESOURCE_EXHAUSTED 40, overflow 10)" in verdict.reasons[0]


def test_a_fallback_in_time_meets_the_sla_and_is_reported():
    verdict = judge(report([(1000, 0)] * 2, fallbacks={"deadline": 500}), 10.0)
    assert (verdict.outcome, verdict.fallback_share) == (LoadOutcome.PASS, 0.25)


@pytest.mark.parametrize(
    ("lag_us", "sla_ms", "limit", "invalid"),
    [
        (900, 1.0, None, False),
        (1100, 1.0, None, True),
        (1100, None, None, True),
        (4900, 50.0, None, False),
        (5100, 50.0, None, True),
        (5100, 50.0, 6.0, False),
    ],
)
def test_a_generator_that_lags_gives_no_verdict(lag_us, sla_ms, limit, invalid):
    verdict = judge(report([(1000, 0)], lag_p99_us=lag_us), sla_ms, limit)
    assert (verdict.outcome is LoadOutcome.INVALID) == invalid
    if invalid:
        assert verdict.outcome.exit_code == 2
        assert "the generator sent its p99 request" in verdict.reasons[0]


def test_no_verdict_without_requests_after_an_interruption_or_without_an_sla():
    assert judge(report([]), 10.0).outcome is LoadOutcome.INVALID
    assert judge(report([(1000, 0)], interrupted=True), 10.0).outcome is LoadOutcome.INVALID
    free = judge(report([(1000, 0)]), None)
    assert (free.outcome, free.outcome.exit_code) == (LoadOutcome.UNJUDGED, 0)
    failing = judge(report([(1000, 1000)], errors={"UNAVAILABLE": 1000}), None)
    assert (failing.outcome, failing.outcome.exit_code) == (LoadOutcome.FAIL, 1)


@pytest.mark.parametrize("requests", [100, 458, 459, 1000, 5000])
def test_the_proof_is_the_binomial_tail(requests):
    def tail(most):
        return sum(math.comb(requests, k) * 0.01**k * 0.99 ** (requests - k) for k in range(most + 1))

    most = most_misses_that_prove(requests)
    assert most == -1 or tail(most) <= 0.01
    assert tail(most + 1) > 0.01


def test_the_proof_is_correct_for_many_requests():
    # 0.99 ** 459 is the first power below 1 %, so that fewer requests prove nothing.
    assert [most_misses_that_prove(n) for n in (0, 458, 459)] == [-1, -1, 0]
    # The normal approximation gives 1000 - 2.326 * sqrt(990) = 926.8.
    assert most_misses_that_prove(100_000) in range(924, 930)
