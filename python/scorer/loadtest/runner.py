"""Runs the load generator and yields its progress."""

from __future__ import annotations

from collections.abc import Callable

from scorer import bridge
from scorer.loadtest.plan import LoadPlan, make_plan
from scorer.loadtest.report import LoadProgress, Report
from scorer.loadtest.settings import LoadSettings

__all__ = ["run_load_test", "run_plan"]


def run_load_test(
    settings: LoadSettings, progress: Callable[[LoadProgress], None] | None = None
) -> tuple[LoadPlan, Report]:
    """Runs one load test; `judge()` says what it means.

    Args:
        settings: What to do.
        progress: Called about once per second.
    """
    plan = make_plan(settings)
    return plan, run_plan(plan, progress)


def run_plan(
    plan: LoadPlan, progress: Callable[[LoadProgress], None] | None = None, *, rate: float | None = None
) -> Report:
    """Runs a prepared load, at another rate if one is given."""

    def tell(text: str) -> None:
        if progress is not None:
            progress(LoadProgress.model_validate_json(text))

    return Report.model_validate_json(bridge.run_load(plan.config(rate), plan.payloads, tell))
