"""Load tests without coordinated omission: a fixed rate, latency from the intended send time."""

from scorer.loadtest.errors import LoadTestError
from scorer.loadtest.report import Progress, Report, Summary
from scorer.loadtest.runner import run_load_test
from scorer.loadtest.settings import LoadSettings, make_settings
from scorer.loadtest.verdict import Outcome, Verdict, judge

__all__ = [
    "LoadSettings",
    "LoadTestError",
    "Outcome",
    "Progress",
    "Report",
    "Summary",
    "Verdict",
    "judge",
    "make_settings",
    "run_load_test",
]
