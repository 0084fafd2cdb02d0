"""Load tests without coordinated omission: a fixed rate, latency from the intended send time."""

from scorer.loadtest.errors import LoadTestError
from scorer.loadtest.report import LatencySummary, LoadProgress, Report
from scorer.loadtest.runner import run_load_test
from scorer.loadtest.settings import LoadSettings, make_settings
from scorer.loadtest.verdict import LoadOutcome, LoadVerdict, judge

__all__ = [
    "LatencySummary",
    "LoadOutcome",
    "LoadProgress",
    "LoadSettings",
    "LoadTestError",
    "LoadVerdict",
    "Report",
    "judge",
    "make_settings",
    "run_load_test",
]
