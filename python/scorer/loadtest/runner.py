"""Runs the load generator, which ends early with a report where it is asked to."""

from __future__ import annotations

import threading
from collections.abc import Callable

from scorer import bridge
from scorer.loadtest.plan import LoadPlan, make_plan
from scorer.loadtest.report import LoadProgress, Report
from scorer.loadtest.settings import LoadSettings


def run_load_test(
    settings: LoadSettings, progress: Callable[[LoadProgress], None] | None = None
) -> tuple[LoadPlan, Report]:
    """Run one load test; `judge()` turns its report into a verdict.

    Args:
        settings: Target, rate, duration, requests.
        progress: Called about once per second with the figures so far.

    Returns:
        The plan that was run, and its report.

    Raises:
        LoadTestError: The server cannot be reached, or no checkpoint fits.
    """
    plan = make_plan(settings)
    return plan, run_plan(plan, progress)


def run_plan(
    plan: LoadPlan,
    progress: Callable[[LoadProgress], None] | None = None,
    *,
    rate: float | None = None,
    stop: threading.Event | None = None,
) -> Report:
    """Run a prepared load.

    Args:
        plan: Of `make_plan`.
        progress: Called about once per second with the figures so far.
        rate: Requests per second in place of the plan's.
        stop: Ends the run within about a second once it is set; the report then has `interrupted`.

    Returns:
        The report on what was sent.
    """

    def on_progress(text: str) -> bool:
        if progress is not None:
            progress(LoadProgress.model_validate_json(text))
        return stop is not None and stop.is_set()

    return Report.model_validate_json(bridge.run_load(plan.config(rate), plan.payloads, on_progress))
