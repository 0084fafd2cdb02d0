"""Load tests without coordinated omission.

Requests are sent at a fixed rate, and latency is measured from the time at which a request should have been
sent.
"""

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
