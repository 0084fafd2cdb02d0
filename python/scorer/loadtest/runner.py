"""Running a load test with the load generator."""

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
    rate: float | None = None,
    stop: threading.Event | None = None,
) -> Report:
    """Run a prepared load test.

    Args:
        plan: A plan of `make_plan`.
        progress: Called about once per second with the figures so far.
        rate: Requests per second; default: the rate of the plan.
        stop: The run ends within about 1 s after this event is set, with a report whose `interrupted` is
            true.

    Returns:
        The report on what was sent.
    """

    def on_progress(text: str) -> bool:
        if progress is not None:
            progress(LoadProgress.model_validate_json(text))
        return stop is not None and stop.is_set()

    return Report.model_validate_json(bridge.run_load(plan.config(rate), plan.payloads, on_progress))
