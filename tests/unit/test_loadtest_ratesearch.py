"""Tests that the rate search finds a known capacity despite noise, stalls and a late generator."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest

from loadtests.openloop import SHORT
from scorer.loadtest.ratesearch import CERTAIN, STRIDE, Found, RateSearch, RateWindow, median_rate

BASE_MS = 0.8


@dataclass
class FakeServer:
    """A queue with a known p99 at each rate, on a shared machine.

    Attributes:
        saturated: The rate from which the queue grows without bound.
        stalls: Share of the windows in which the machine stalls.
        late: Share of the windows in which the generator is late, independent of the server.
        generator: The highest rate that the generator can offer.
        backpressure: The rate above which the server stops reading, so that sends are late.
    """

    saturated: float
    seed: int = 0
    noise: float = 0.2
    stalls: float = 0.0
    late: float = 0.0
    generator: float = float("inf")
    backpressure: float = float("inf")
    windows: int = 0
    settled: int = 0
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def capacity(self, threshold_ms: float) -> float:
        """The rate whose p99 without noise equals the threshold."""
        return self.saturated * (1 - BASE_MS / threshold_ms)

    def window(self, rate: float, seconds: float) -> RateWindow:
        self.windows += 1
        p99 = BASE_MS / (1 - rate / self.saturated) if rate < self.saturated else float("inf")
        p99 *= float(np.exp(self.random.normal(0, self.noise)))
        if self.random.random() < self.stalls:
            p99 += 60.0
        beyond = rate > self.generator
        lag = 40_000.0 if beyond or rate > self.backpressure or self.random.random() < self.late else 50.0
        return RateWindow(
            rate=rate,
            # A late generator measures only its own delay.
            p99_ms=p99 + (lag / 1000 if lag > 1000 else 0),
            failed=0.0 if np.isfinite(p99) else 0.3,
            answered=min(rate, self.saturated),
            lag_us=lag,
            busy=1.0 if beyond else 0.4,
        )

    def settle(self) -> None:
        self.settled += 1


def found_rate(server: FakeServer, threshold_ms: float, *, start: float = 1_000.0) -> float:
    """Return a figure as it is published: the median of three searches."""
    return median_rate([RateSearch(server, start).highest(threshold_ms) for _ in range(3)])[0]


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("threshold_ms", [5.0, 25.0])
def test_the_capacity_is_found_in_spite_of_noise_stalls_and_a_late_generator(
    seed: int, threshold_ms: float
) -> None:
    saturated = float(np.random.default_rng(seed + 100).uniform(300, 60_000))
    server = FakeServer(saturated, seed, stalls=0.15, late=0.1)
    assert found_rate(server, threshold_ms) == pytest.approx(server.capacity(threshold_ms), rel=0.05)


def test_one_search_shares_its_windows_between_thresholds() -> None:
    together = apart = 0
    for seed in range(8):
        server = FakeServer(20_000.0, seed)
        search = RateSearch(server, 1_000.0)
        rates = [search.highest(threshold).rate for threshold in (25.0, 10.0, 5.0)]
        assert rates == sorted(rates, reverse=True)
        together, server.windows = together + server.windows, 0
        for threshold in (25.0, 10.0, 5.0):
            RateSearch(server, 1_000.0).highest(threshold)
        apart += server.windows
    assert together < 0.7 * apart


def test_a_rate_that_the_generator_cannot_offer_is_not_the_servers_limit() -> None:
    server = FakeServer(50_000.0, generator=8_000.0)
    result = RateSearch(server, 1_000.0).highest(5.0)
    assert result.generator_bound
    assert result.rate == pytest.approx(8_000, rel=0.05)


def test_sends_that_are_late_because_the_server_does_not_read_are_its_limit() -> None:
    server = FakeServer(50_000.0, backpressure=6_000.0, noise=0.05)
    result = RateSearch(server, 1_000.0).highest(2.0)
    assert not result.generator_bound
    assert result.rate == pytest.approx(6_000, rel=0.05)


def test_a_server_that_never_meets_the_threshold_has_no_rate() -> None:
    assert RateSearch(FakeServer(5_000.0), 1_000.0).highest(0.1) == Found(0.0, generator_bound=False)


def test_saturation_is_the_answered_rate_under_overload() -> None:
    server = FakeServer(5_000.0)
    assert RateSearch(server, 1_000.0).saturation(5_500.0) == 5_000
    assert server.settled == 9, "an overload must not affect the next window"


def test_a_search_is_bounded() -> None:
    server = FakeServer(20_000.0, noise=2.0, stalls=0.5)
    RateSearch(server, 1_000.0, most_windows=60).highest(5.0)
    assert server.windows <= 60 + 3


def test_a_search_that_ends_at_its_limit_gives_an_estimate() -> None:
    for seed in range(20):
        server = FakeServer(20_000.0, seed)
        result = RateSearch(server, 8_000.0, most_windows=8).highest(5.0)
        assert result.unfinished
        assert 0 < result.rate <= 1.2 * server.capacity(5.0)
    assert not RateSearch(FakeServer(20_000.0), 8_000.0).highest(5.0).unfinished


def test_one_outlier_does_not_decide_a_search_that_ends_at_its_limit() -> None:
    def windows(*p99_ms: float) -> list[RateWindow]:
        return [RateWindow(rate=1, p99_ms=p99, failed=0, answered=1, lag_us=0, busy=0) for p99 in p99_ms]

    search = RateSearch(FakeServer(1.0), 1_000.0, step=1.0, most_windows=0)
    search.windows = {
        0: windows(1, 1),
        1: windows(9),
        2: windows(1, 9, 1),
        3: windows(1, 1),
        4: windows(9, 9),
    }
    assert search.highest(5.0) == Found(8_000.0, generator_bound=False, unfinished=True)
    search.windows = {0: windows(9, 1, 9), 1: windows(9)}
    assert search.highest(5.0).rate == 0.0


def test_a_search_increases_the_rate_in_bounded_steps() -> None:
    server = FakeServer(1e9)
    offered: list[float] = []
    RateSearch(
        server, 1_000.0, step=0.04, most_windows=40, told=lambda window: offered.append(window.rate)
    ).highest(5.0)
    assert max(after / before for before, after in pairwise(offered)) <= STRIDE


def test_a_search_for_one_threshold_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(20_000.0)
    monkeypatch.setattr("scorer.loadtest.ratesearch.time.monotonic", lambda: float(server.windows))
    search = RateSearch(server, 1_000.0, most_seconds=10.0)
    for number, threshold in enumerate((25.0, 10.0, 5.0), start=1):
        search.highest(threshold)
        assert server.windows <= number * (10 + 3)


@pytest.mark.parametrize("seed", range(25))
def test_the_short_search_is_within_a_tenth(seed: int) -> None:
    saturated = float(np.random.default_rng(seed + 100).uniform(300, 60_000))
    server = FakeServer(saturated, seed, stalls=0.15, late=0.1)
    results: list[Found] = []
    for _ in range(3):
        search = RateSearch(
            server, results[-1].rate if results else 1_000.0, **(SHORT | {"most_seconds": 1e9})
        )
        results.append(search.highest(10.0))
    assert median_rate(results)[0] == pytest.approx(server.capacity(10.0), rel=0.1)


def test_the_bounds_contain_the_capacity_and_are_narrow() -> None:
    """A server holds the lower bound and not the upper one, whatever the noise, in 23 of 25 searches."""
    inside, widths = 0, []
    for seed in range(50):
        saturated = float(np.random.default_rng(seed + 100).uniform(300, 60_000))
        server = FakeServer(saturated, seed, stalls=0.15, late=0.1)
        search = RateSearch(server, 1_000.0, step=0.03, repeats=5)
        bounds = search.bounds(search.highest(5.0), 5.0)
        assert bounds.low is not None and bounds.high is not None
        inside += bounds.low < server.capacity(5.0) < bounds.high
        widths.append(bounds.high / bounds.low)
    assert inside >= 46
    assert np.median(widths) < 1.25


def test_a_wrong_rate_is_corrected_by_its_bounds() -> None:
    server = FakeServer(20_000.0, noise=0.05)
    for wrong in (6_000.0, 30_000.0):
        bounds = RateSearch(server, 1_000.0, step=0.03).bounds(Found(wrong, generator_bound=False), 5.0)
        assert bounds.low is not None and bounds.high is not None
        assert bounds.low < server.capacity(5.0) < bounds.high


def test_bounds_are_unknown_beyond_the_generator_and_the_limits_of_the_search() -> None:
    server = FakeServer(50_000.0, generator=8_000.0)
    search = RateSearch(server, 1_000.0, step=0.03)
    bounds = search.bounds(search.highest(5.0), 5.0)
    assert bounds.high is None and bounds.low == pytest.approx(8_000, rel=0.1)
    short = RateSearch(FakeServer(50_000.0), 1_000.0, most_windows=3)
    assert short.bounds(Found(1_000.0, generator_bound=False), 5.0).low is None


def test_chance_reaches_a_certain_number_of_windows_rarely() -> None:
    """By simulation of windows that hold with probability 1/2."""
    holds = np.random.default_rng(5).random((100_000, CERTAIN[-1][0])) < 0.5
    certain = np.zeros(len(holds), bool)
    for windows, needed in CERTAIN:
        certain |= holds[:, :windows].sum(1) >= needed
    assert certain.mean() < 0.04
