"""Search for the highest rate that a server sustains, with repeated windows, and the bounds of that rate.

A window offers one rate for a few seconds, open loop. A rate holds if the majority of its windows hold. A
window in which the generator itself was late is measured again. Before the search ends, the rate that it
found and the next higher one are measured with twice as many windows as the others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final, Protocol

# If the 99th percentile of the send lag, in µs, is larger, the window does not describe the server.
MOST_LAG_US: Final = 1_000
# If the generator uses a larger share of its core, it cannot offer a higher rate.
BUSY: Final = 0.95
# Largest factor between one rate and the next while the search goes up or down.
STRIDE: Final = 2.0
# Largest share of requests that fail or get a fallback in a window that holds.
MISSES: Final = 0.01
# Numbers of windows and of those among them that agree, after which a rate is certain. If each window agreed
# with probability 1/2, one of these would be reached in at most 1/64 + 11/1024 + 92/8192 = 3.8 % of cases.
CERTAIN: Final = ((6, 6), (10, 9), (13, 11))


@dataclass(frozen=True, kw_only=True)
class RateWindow:
    """Result of one window.

    Attributes:
        rate: Requests per second that were due.
        p99_ms: 99th percentile of the latency from the intended send time; infinite if the window was ended
            early because the queue grew without bound.
        failed: Share of the requests that were not answered by the model.
        answered: Answers per second.
        lag_us: 99th percentile of the generator's send lag.
        busy: Share of its core that the generator used.
        most_lag_us: Largest send lag of a window that describes the server.
    """

    rate: float
    p99_ms: float
    failed: float
    answered: float
    lag_us: float
    busy: float
    most_lag_us: float = MOST_LAG_US

    @property
    def is_late(self) -> bool:
        """Whether the generator sent late."""
        return self.lag_us > self.most_lag_us

    def holds(self, threshold_ms: float) -> bool:
        """Return whether p99 is within the threshold and at most one request in a hundred failed."""
        return self.p99_ms <= threshold_ms and self.failed <= MISSES


class Server(Protocol):
    """A server and its generator, as a search uses them."""

    def window(self, rate: float, seconds: float) -> RateWindow:
        """Offer a rate, in requests per second, for a number of seconds."""
        ...

    def settle(self) -> None:
        """Wait until the server has processed the requests that an overload left."""
        ...


@dataclass(frozen=True)
class Found:
    """The result of one search for one threshold.

    Attributes:
        rate: The highest rate that held, requests per second; 0 if none held.
        generator_bound: Whether the generator, not the server, could not reach the next higher rate.
        unfinished: Whether the search ended because of `most_windows` or `most_seconds`. The rate is then the
            one with which most windows agree.
    """

    rate: float
    generator_bound: bool
    unfinished: bool = False


@dataclass(frozen=True)
class Bounds:
    """The interval of a rate: the server holds `low` and does not hold `high`, each with 96 % confidence.

    A server holds a rate here if more than half of all windows at this rate hold. The share of windows that
    hold is assumed not to rise with the rate.

    Attributes:
        low: Requests per second; None if no such rate was found within the limits of the search.
        high: Requests per second; None if no such rate was found, or the generator cannot offer it.
    """

    low: float | None
    high: float | None


@dataclass
class RateSearch:
    """A search on one server, for any number of thresholds, which share the measured windows.

    Attributes:
        server: The measured server.
        start: The first rate to try, requests per second.
        least: The lowest rate to try, requests per second.
        seconds: Length of a window, seconds. The window is longer if it would have fewer requests than
            `requests`.
        requests: Smallest number of requests of a window, as far as `longest` permits.
        longest: Largest length of a window, seconds.
        step: Ratio of neighbouring rates minus one. This is the resolution of the result.
        repeats: Largest number of windows per rate. Fewer are measured if a majority is certain earlier.
        retries: How often a window is measured again if the generator was late.
        most_windows: Largest number of windows of the whole search.
        most_seconds: Largest time of the search for one threshold, and of that for its bounds, seconds.
        saturating_windows: Number of windows at each rate of `saturation`.
        saturating_seconds: Length of such a window, seconds.
        told: Called with each window.
    """

    server: Server
    start: float
    least: float = 20.0
    seconds: float = 1.0
    requests: int = 500
    longest: float = 6.0
    step: float = 0.015
    repeats: int = 7
    retries: int = 3
    most_windows: int = 400
    most_seconds: float = math.inf
    saturating_windows: int = 3
    saturating_seconds: float = 2.0
    told: Callable[[RateWindow], None] = lambda _: None
    windows: dict[int, list[RateWindow]] = field(default_factory=dict)
    generator_limit: int | None = None
    measured: int = 0
    _end: float = math.inf

    def rate(self, place: int) -> float:
        """Return the rate at a position of the grid, requests per second."""
        return self.start * float((1 + self.step) ** place)

    def highest(self, threshold_ms: float, *, near: float | None = None) -> Found:
        """Find the highest rate whose p99 is within the threshold.

        Args:
            threshold_ms: The upper bound of p99, milliseconds.
            near: A rate close to the result, if one is known.
        """
        place = 0 if near is None else round(math.log(near / self.start) / math.log(1 + self.step))
        lowest = math.floor(math.log(self.least / self.start) / math.log(1 + self.step))
        self._end = time.monotonic() + self.most_seconds
        good, bad = self._bracket(place, threshold_ms, lowest)
        while True:
            while bad - good > 1:
                middle = (good + bad) // 2
                if self._holds(middle, threshold_ms):
                    good = middle
                else:
                    bad = middle
            if self._is_over():
                return self._estimate(threshold_ms)
            if good < lowest:
                return Found(0.0, generator_bound=False)
            # Measure both ends again. If more windows change a verdict, the search continues from there.
            if not self._holds(good, threshold_ms, again=True):
                good, bad = self._bracket(good - 1, threshold_ms, lowest)
            elif not self._is_generators(bad) and self._holds(bad, threshold_ms, again=True):
                good, bad = self._bracket(bad, threshold_ms, lowest)
            else:
                return Found(self.rate(good), generator_bound=self._is_generators(bad))

    def bounds(self, found: Found, threshold_ms: float) -> Bounds:
        """Measure further windows around a rate until its interval is certain, as far as the limits permit.

        Args:
            found: The result of `highest` for this threshold, with a rate above 0.
            threshold_ms: The upper bound of p99, milliseconds.
        """
        self._end = time.monotonic() + self.most_seconds
        lowest = math.floor(math.log(self.least / self.start) / math.log(1 + self.step))
        good = round(math.log(found.rate / self.start) / math.log(1 + self.step))

        def end(place: int, sign: int) -> float | None:
            stride = 1
            while (certain := self._is_certain(place, threshold_ms, holding=sign < 0)) is False:
                place, stride = max(place + sign * stride, lowest - 1), stride * 2
            return self.rate(place) if certain else None

        return Bounds(end(good, -1), end(good + 1, 1))

    def saturation(self, above: float) -> float:
        """Return the answers per second of the server while the offered rate is above its capacity.

        Args:
            above: A rate that the server does not sustain.

        Returns:
            The largest of the medians over the offered rates.
        """
        medians = []
        for factor in (1.0, 1.25, 1.6):
            answered = []
            for _ in range(self.saturating_windows):
                answered.append(self.server.window(above * factor, self.saturating_seconds).answered)
                self.server.settle()
            medians.append(median(answered))
        return max(medians)

    def _bracket(self, place: int, threshold_ms: float, lowest: int) -> tuple[int, int]:
        """Return a position that holds and a higher one that does not. The steps between tries grow."""
        longest = max(1, int(math.log(STRIDE) / math.log(1 + self.step)))
        stride = min(4, longest)
        if self._holds(place, threshold_ms):
            good = place
            while not self._is_over() and self._holds(good + stride, threshold_ms):
                good, stride = good + stride, min(stride * 2, longest)
            return good, good + stride
        bad = place
        while bad - stride >= lowest and not self._holds(bad - stride, threshold_ms):
            bad, stride = bad - stride, min(stride * 2, longest)
        return max(bad - stride, lowest - 1), bad

    def _holds(self, place: int, threshold_ms: float, *, again: bool = False) -> bool:
        """Return the verdict of the majority of a rate's windows. `again` doubles their largest number."""
        if self._is_generators(place):
            return False
        wanted = self.repeats * (2 if again else 1)
        kept = self.windows.setdefault(place, [])
        while not self._is_generators(place):
            # A window in which the generator was late counts only if it held nevertheless.
            judged = [window for window in kept if not window.is_late or window.holds(threshold_ms)]
            held = sum(window.holds(threshold_ms) for window in judged)
            # The windows that are not measured yet cannot change the majority.
            decided = max(held, len(judged) - held) > max(wanted, len(judged)) // 2
            if decided or len(judged) >= wanted or self._is_over():
                return held * 2 > len(judged)
            self._measure(place, kept, threshold_ms)
        return False

    def _is_certain(self, place: int, threshold_ms: float, *, holding: bool) -> bool | None:
        """Return whether so many windows hold, or do not hold, that chance cannot explain it.

        Args:
            place: Position of the rate.
            threshold_ms: The upper bound of p99, milliseconds.
            holding: Whether windows that hold are counted.

        Returns:
            None: the search has reached its limits, or the generator cannot offer the rate.
        """
        kept = self.windows.setdefault(place, [])
        for windows, needed in CERTAIN:
            while len(kept) < windows:
                if self._is_over() or self._is_generators(place) or self.rate(place) < self.least:
                    return None
                self._measure(place, kept, threshold_ms)
            if sum(window.holds(threshold_ms) is holding for window in kept[:windows]) >= needed:
                return True
            if (
                sum(window.holds(threshold_ms) is not holding for window in kept)
                > CERTAIN[-1][0] - CERTAIN[-1][1]
            ):
                return False
        return False

    def _is_over(self) -> bool:
        return self.measured >= self.most_windows or time.monotonic() >= self._end

    def _estimate(self, threshold_ms: float) -> Found:
        """Return the measured rate with which most windows agree: up to it they held, above it they did not.

        A single window that failed at a low rate or held at a high rate does not determine the result.
        """
        held = {
            place: [window.holds(threshold_ms) for window in windows]
            for place, windows in self.windows.items()
            if windows
        }

        def agreeing(limit: float) -> int:
            return sum(holds == (place <= limit) for place, verdicts in held.items() for holds in verdicts)

        # The lowest of the rates with which the most windows agree.
        best = max(sorted([-math.inf, *held]), key=agreeing)
        return Found(
            self.rate(int(best)) if best > -math.inf else 0.0, generator_bound=False, unfinished=True
        )

    def _is_generators(self, place: int) -> bool:
        return self.generator_limit is not None and place >= self.generator_limit

    def _measure(self, place: int, kept: list[RateWindow], threshold_ms: float) -> None:
        """Add a window in which the generator was not late, or record that it cannot offer this rate."""
        rate = self.rate(place)
        seconds = min(max(self.seconds, self.requests / rate), self.longest)
        tries: list[RateWindow] = []
        while len(tries) <= self.retries:
            self.measured += 1
            window = self.server.window(rate, seconds)
            self.told(window)
            tries.append(window)
            if not window.holds(threshold_ms):
                self.server.settle()
            if not window.is_late or window.holds(threshold_ms):
                kept.append(window)
                return
        if all(window.busy >= BUSY for window in tries):
            # The generator was late each time and used its whole core: it cannot offer this rate or higher
            # ones.
            self.generator_limit = place
            return
        # The generator was late each time although its core was not busy: the server does not accept requests
        # fast enough, so the lag is that of the server.
        kept.append(replace(min(tries, key=lambda window: window.lag_us), lag_us=0.0))


def median_rate(found: Sequence[Found]) -> tuple[float, bool]:
    """Return the median rate of several searches and whether the generator limited most of them."""
    bound = sum(one.generator_bound for one in found)
    return median(one.rate for one in found), bound * 2 > len(found)


def limits(found: Sequence[Found]) -> str:
    """Return what bounded the searches other than the server, as a note; empty if nothing did."""
    words = []
    if sum(one.generator_bound for one in found) * 2 > len(found):
        words.append("bound by the generator: the server's rate is higher")
    if unfinished := sum(one.unfinished for one in found):
        words.append(f"an estimate in {unfinished} of {len(found)} searches, which reached their time limit")
    return "".join(f"; {text}" for text in words)
