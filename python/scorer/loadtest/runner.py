"""Running a load test with the load generator."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from scorer import bridge
from scorer.loadtest.loaded import LoadedServer
from scorer.loadtest.plan import LoadPlan, make_plan
from scorer.loadtest.ratesearch import MOST_LAG_US, RateSearch, RateWindow
from scorer.loadtest.report import LoadProgress, Report
from scorer.loadtest.settings import LoadSettings


def run_load_test(
    settings: LoadSettings, progress: Callable[[LoadProgress], None] | None = None
) -> tuple[LoadPlan, Report]:
    """Run one load test; `judge()` turns its report into a verdict.

    Args:
        settings: The settings of the load test.
        progress: Called about once per second with the figures so far.

    Returns:
        The plan, and the report of its run.

    Raises:
        LoadTestError: The server cannot be reached, or no checkpoint matches a method.
    """
    plan = make_plan(settings)
    return plan, run_plan(plan, progress)


def run_plan(
    plan: LoadPlan,
    progress: Callable[[LoadProgress], None] | None = None,
    *,
    stop: threading.Event | None = None,
) -> Report:
    """Run a prepared load test.

    Args:
        plan: A plan of `make_plan`.
        progress: Called about once per second with the figures so far.
        stop: The run ends within about 1 s after this event is set, with a report whose `interrupted` is
            true.

    Returns:
        The report on what was sent.
    """

    def on_progress(text: str) -> bool:
        if progress is not None:
            progress(LoadProgress.model_validate_json(text))
        return stop is not None and stop.is_set()

    return Report.model_validate_json(bridge.run_load(plan.config(), plan.payloads, on_progress))


_WINDOW_SECONDS = 1.5
_WARMUP_SECONDS = 0.3
_WINDOW_REQUESTS = 1_000
_LONGEST_WINDOW_SECONDS = 10.0


def rate_search(plan: LoadPlan, told: Callable[[RateWindow], None]) -> RateSearch:
    """Return a search for the highest rate at which the model answers within an SLA.

    Windows have the length and the warm-up that the settings state. Otherwise they last 1.5 s after 0.3 s,
    and longer with fewer than 1,000 requests, up to 10 s.

    Args:
        plan: A plan of `make_plan`.
        told: Called with each window.
    """
    settings = plan.settings
    stated = settings.model_fields_set

    def run(rate: float, seconds: float, warmup: float) -> Report:
        own = settings.model_copy(update={"rate": rate, "seconds": seconds, "warmup_seconds": warmup})
        return run_plan(replace(plan, settings=own))

    is_stated = "seconds" in stated
    seconds = settings.seconds if is_stated else _WINDOW_SECONDS
    server = LoadedServer(
        run,
        settings.warmup_seconds if "warmup_seconds" in stated else _WARMUP_SECONDS,
        settings.threads,
        MOST_LAG_US if settings.max_lag_ms is None else settings.max_lag_ms * 1000,
    )
    return RateSearch(
        server,
        settings.rate,
        least=settings.rate / 64,
        seconds=seconds,
        requests=1 if is_stated else _WINDOW_REQUESTS,
        longest=seconds if is_stated else _LONGEST_WINDOW_SECONDS,
        step=0.03,
        repeats=5,
        most_seconds=150.0,
        told=told,
    )
