"""The verdict of a load test on an SLA of the form "p99 within x milliseconds"."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from scorer.loadtest.report import Report, WindowReport

# The SLA is a p99, so 1 % of the requests may miss it.
ALLOWED_MISSES = 0.01
# Late requests tend to cluster in time, so 59 of 60 windows must meet the SLA as well as the whole run.
WINDOWS_NEEDED = 59 / 60
_CONFIDENCE = 0.99


class LoadOutcome(StrEnum):
    """The verdict as one word."""

    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    INVALID = "invalid"
    UNJUDGED = "unjudged"

    @property
    def exit_code(self) -> int:
        """0 for a pass or no SLA, 1 for a violated SLA, 2 for a run without a verdict."""
        return {LoadOutcome.FAIL: 1, LoadOutcome.INVALID: 2}.get(self, 0)


@dataclass(frozen=True, slots=True)
class LoadVerdict:
    """The verdict on a run.

    Attributes:
        outcome: The verdict as one word.
        reasons: Reasons why the outcome is not a pass; empty for a pass.
        sla_ms: The SLA in milliseconds; None if there is none.
        met_share: Share of the requests that were answered within the SLA.
        windows_met: Number of windows in which at most 1 % of the requests missed the SLA.
        windows: Number of windows that had requests.
        fallback_share: Share of the requests that a fallback answered.
        proven: Whether fewer than 1 % of the requests miss the SLA at 99 % confidence, if misses are
            independent of each other. A pass that is not proven needs a longer run.
    """

    outcome: LoadOutcome
    reasons: tuple[str, ...]
    sla_ms: float | None
    met_share: float
    windows_met: int
    windows: int
    fallback_share: float
    proven: bool


def judge(report: Report, sla_ms: float | None, max_lag_ms: float | None = None) -> LoadVerdict:
    """Judge a run by its SLA.

    A request without an answer counts as a miss, whatever the reason and however fast the error came. The
    answer of a fallback within the SLA is not a miss.

    Args:
        report: The report of the run.
        sla_ms: The SLA in milliseconds. If it is None, only requests without an answer count as misses.
        max_lag_ms: Limit of the p99 of the generator's send lag in milliseconds, above which there is no
            verdict; default: a tenth of the SLA, at least 1 ms.
    """
    windows = [window for window in report.windows if window.intended]
    met = sum(map(_window_met, windows))
    share = 1 - report.misses / report.requests if report.requests else 0.0
    unhealthy = _generator_faults(report, sla_ms, max_lag_ms)
    broken = _broken(report, sla_ms, share, met, len(windows))
    if unhealthy:
        outcome, reasons = LoadOutcome.INVALID, unhealthy
    elif sla_ms is None:
        # Too many requests without an answer fail the run even without an SLA.
        outcome, reasons = (LoadOutcome.FAIL, broken) if broken else (LoadOutcome.UNJUDGED, ())
    else:
        outcome, reasons = (LoadOutcome.FAIL, broken) if broken else (LoadOutcome.PASS, ())
    return LoadVerdict(
        outcome=outcome,
        reasons=reasons,
        sla_ms=sla_ms,
        met_share=share,
        windows_met=met,
        windows=len(windows),
        fallback_share=sum(report.fallbacks.values()) / report.requests if report.requests else 0.0,
        proven=outcome is LoadOutcome.PASS and report.misses <= most_misses_that_prove(report.requests),
    )


def _window_met(window: WindowReport) -> bool:
    return window.misses <= ALLOWED_MISSES * window.intended


def _generator_faults(report: Report, sla_ms: float | None, max_lag_ms: float | None) -> tuple[str, ...]:
    """Return the reasons why the run has no verdict, such as a generator that was behind its schedule."""
    if report.interrupted:
        return ("the run was interrupted",)
    if not report.requests:
        return ("no request was due in the measured part; raise the rate or the seconds",)
    limit_ms = max_lag_ms if max_lag_ms is not None else max(1.0, (sla_ms or 0.0) / 10)
    lag_ms = report.send_lag_us.p99 / 1000
    if lag_ms > limit_ms:
        return (
            f"the generator sent its p99 request {lag_ms:.2f} ms late, more than {limit_ms:g} ms; "
            "lower the rate, add --threads, or run it on another machine",
        )
    return ()


def _broken(report: Report, sla_ms: float | None, share: float, met: int, windows: int) -> tuple[str, ...]:
    reasons = []
    if report.requests and report.misses > ALLOWED_MISSES * report.requests:
        failed = sum(report.errors.values())
        late = report.misses - failed
        parts = [f"{late} later than {sla_ms:g} ms"] if sla_ms is not None and late else []
        kinds = ", ".join(f"{name} {count}" for name, count in report.errors.items())
        parts += [f"{failed} not answered: {kinds}"] if failed else []
        reasons.append(f"{1 - share:.2%} of the requests missed, more than 1 % ({', '.join(parts)})")
    if windows and met < WINDOWS_NEEDED * windows:
        reasons.append(f"{windows - met} of {windows} windows missed, more than 1 in 60")
    return tuple(reasons)


def most_misses_that_prove(requests: int) -> int:
    """Return the largest number of misses that proves a miss rate below 1 %; -1 if no number does.

    This is a one-sided binomial test at 99 % confidence: if the true miss rate were 1 %, at most 1 % of the
    runs would have this number of misses or fewer.
    """
    log_probability = requests * math.log1p(-ALLOWED_MISSES)
    odds = math.log(ALLOWED_MISSES) - math.log1p(-ALLOWED_MISSES)
    total = 0.0
    for misses in range(requests + 1):
        total += math.exp(log_probability)
        if total > 1 - _CONFIDENCE:
            return misses - 1
        log_probability += (
            math.log(requests - misses) - math.log(misses + 1) + odds if misses < requests else 0.0
        )
    return requests
