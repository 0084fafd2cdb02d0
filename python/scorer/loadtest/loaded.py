"""A running server under load, as the search for the highest rate uses it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from scorer.loadtest.ratesearch import MOST_LAG_US, RateWindow
from scorer.loadtest.report import Report

# An overload is worked off when the p99 at a low rate is below this, in microseconds.
_CALM_US: Final = 20_000
_MOST_SETTLING: Final = 30

Run = Callable[[float, float, float], Report]
"""Sends at a rate, requests per second, for some seconds after a warm-up of some seconds."""


@dataclass(frozen=True)
class LoadedServer:
    """A load on a running server, for `RateSearch`.

    Attributes:
        run: Sends the load.
        warmup_seconds: Length of the warm-up before each window, which is not counted.
        threads: Number of sending threads, each of which can use a core.
        most_lag_us: Largest send lag of a window that describes the server, microseconds.
    """

    run: Run
    warmup_seconds: float = 0.3
    threads: int = 1
    most_lag_us: float = MOST_LAG_US

    def window(self, rate: float, seconds: float) -> RateWindow:
        """Offer a rate for some seconds."""
        processor, wall = time.process_time(), time.monotonic()
        report = self.run(rate, seconds, self.warmup_seconds)
        busy = (time.process_time() - processor) / (time.monotonic() - wall) / self.threads
        # Fallbacks are answers in time, but do not count as capacity.
        by_model = report.answered - sum(report.fallbacks.values())
        return RateWindow(
            rate=rate,
            p99_ms=report.latency_us.p99 / 1000,
            failed=1 - by_model / max(report.requests, 1),
            # Requests in a queue are answered after the window, so the time for them is added.
            answered=by_model / (seconds + max(report.latency_us.p99 - report.latency_us.min, 0.0) / 1e6),
            lag_us=float(report.send_lag_us.p99),
            busy=busy,
            most_lag_us=self.most_lag_us,
        )

    def settle(self) -> None:
        """Wait until requests at a low rate are answered fast again, at most ten seconds."""
        for _ in range(_MOST_SETTLING):
            report = self.run(20.0, 0.3, 0.0)
            if report.answered == report.requests and report.latency_us.p99 <= _CALM_US:
                return
