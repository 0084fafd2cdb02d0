"""Tests of cumulative incidence: against SciPy's Kaplan-Meier, a naive reference, and nominal coverage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from scorer.stats.incidence import CENSORED, cumulative_incidence


def rows(seed: int, count: int = 400, digits: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return delays and causes with ties between events and ends of observations."""
    random = np.random.default_rng(seed)
    event = random.exponential(5.0, count)
    event[random.random(count) < 0.4] = np.inf
    end = random.uniform(0, 15, count)
    cause = np.where(event <= end, 1 + (random.random(count) < 0.3), CENSORED)
    return np.round(np.minimum(event, end), digits), cause


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_with_one_cause_it_is_kaplan_and_meiers_with_greenwoods_log_log_bounds(seed: int) -> None:
    delay, cause = rows(seed)
    found = cumulative_incidence(delay, cause, confidence=0.9)
    seen, censored = delay[cause > 0], delay[cause == 0]
    reference = stats.ecdf(stats.CensoredData(uncensored=seen, right=censored))
    bounds = reference.cdf.confidence_interval(0.9, method="log-log")
    at = np.searchsorted(reference.cdf.quantiles, found.delay)
    assert found.share == pytest.approx(reference.cdf.probabilities[at], abs=1e-12)
    assert found.low == pytest.approx(bounds.low.probabilities[at], abs=1e-9)
    assert found.high == pytest.approx(bounds.high.probabilities[at], abs=1e-9)


def naive(delay: np.ndarray, cause: np.ndarray, of: int) -> tuple[list[float], list[float]]:
    """Return shares and variances step by step, with the double sum of the textbook."""
    steps, survival, share = [], 1.0, 0.0
    for t in sorted(set(delay[cause > 0].tolist())):
        n = int((delay >= t).sum())
        d, own = int(((delay == t) & (cause > 0)).sum()), int(((delay == t) & (cause == of)).sum())
        share += survival * own / n
        steps.append((n, d, own, survival, share))
        survival *= 1 - d / n
    variances = []
    for k, (*_, last) in enumerate(steps):
        total = 0.0
        for n, d, own, before, at in steps[: k + 1]:
            total += (last - at) ** 2 * d / (n * (n - d)) if n > d else 0.0
            total += before**2 * own * (n - own) / n**3 - 2 * (last - at) * before * own / n**2
        variances.append(total)
    return [one[-1] for one in steps], variances


@pytest.mark.parametrize("of", [1, 2])
def test_with_two_causes_it_equals_the_textbooks_double_sum(of: int) -> None:
    delay, cause = rows(5, 150)
    found = cumulative_incidence(delay, cause, of=(of,))
    shares, variances = naive(delay, cause, of)
    assert found.share == pytest.approx(shares, abs=1e-12)
    inside = found.share > 0
    logs = np.log1p(-found.share[inside])
    spread = stats.norm.ppf(0.975) * np.sqrt(np.array(variances)[inside]) / (np.exp(logs) * -logs)
    assert found.low[inside] == pytest.approx(1 - np.exp(logs * np.exp(-spread)), abs=1e-9)
    assert found.high[inside] == pytest.approx(1 - np.exp(logs * np.exp(spread)), abs=1e-9)
    both = cumulative_incidence(delay, cause)
    other = cumulative_incidence(delay, cause, of=(3 - of,))
    assert found.share + other.share == pytest.approx(both.share, abs=1e-12)


def test_the_bounds_have_their_nominal_coverage_and_most_rows_never_have_an_event() -> None:
    random = np.random.default_rng(8)
    trials, ever = 400, 0.06
    hits = 0
    for _ in range(trials):
        event = np.where(random.random(2_000) < ever, random.exponential(10.0, 2_000), np.inf)
        end = random.uniform(0, 60, 2_000)
        found = cumulative_incidence(np.minimum(event, end), (event <= end).astype(np.int64))
        at = int(found.place(np.array([20.0]))[0])
        hits += bool(found.low[at] <= ever * (1 - np.exp(-2.0)) <= found.high[at])
    assert stats.binomtest(hits, trials, 0.95).pvalue > 1e-4


def test_edges_have_stated_bounds() -> None:
    # Before the first event of the cause: no hit among three rows.
    found = cumulative_incidence(np.array([1.0, 2.0, 3.0]), np.array([2, 1, 0]), of=(1,))
    assert found.share.tolist() == pytest.approx([0.0, 1 / 3])
    assert found.low[0] == 0 and found.high[0] == pytest.approx(1 - 0.025 ** (1 / 3))
    # Every row has an event: the share is 1, and the bounds stay in [0, 1].
    whole = cumulative_incidence(np.array([1.0, 2.0]), np.array([1, 1]))
    assert whole.share[-1] == pytest.approx(1) and whole.high[-1] == 1 and 0 < whole.low[-1] < 1
    empty = cumulative_incidence(np.array([4.0]), np.array([CENSORED]))
    assert len(empty.delay) == 0 and empty.place(np.array([9.0])).tolist() == [-1]
    with pytest.raises(ValueError, match="at least 0"):
        cumulative_incidence(np.array([-1.0]), np.array([1]))
