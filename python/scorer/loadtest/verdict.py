"""The verdict of a run on an SLA of the form "p99 within so many milliseconds"."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from scorer.loadtest.report import Report, WindowReport

# A p99: one request in a hundred may miss.
ALLOWED_MISSES = 0.01
# Latencies come in bad moments, so the whole alone is not enough: 59 of 60 windows must do.
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
        reasons: Why it is not a pass; empty for a pass.
        sla_ms: The SLA in milliseconds; None if there is none.
        met_share: Share of the requests answered within it.
        windows_met: Windows in which at most one request in a hundred missed.
        windows: All windows that had requests.
        fallback_share: Share of the requests that a fallback answered: in time, but degraded.
        proven: At 99 % confidence, were the misses independent of each other, fewer than one
            request in a hundred misses. A pass that is not proven needs a longer run.
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

    A request without an answer counts as late, whatever the reason: a fast error is no fast answer. A
    fallback in time counts as in time.

    Args:
        report: Of the run.
        sla_ms: The SLA in milliseconds; None: requests without an answer alone fail the run.
        max_lag_ms: p99 of the generator's own send lag, in milliseconds, above which there is no verdict;
            None: a tenth of the SLA, at least 1 ms.
    """
    windows = [window for window in report.windows if window.intended]
    met = sum(map(_window_met, windows))
    share = 1 - report.misses / report.requests if report.requests else 0.0
    unhealthy = _generator_faults(report, sla_ms, max_lag_ms)
    broken = _broken(report, sla_ms, share, met, len(windows))
    if unhealthy:
        outcome, reasons = LoadOutcome.INVALID, unhealthy
    elif sla_ms is None:
        # Requests without an answer are wrong without an SLA too.
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
    """Why there is no verdict: the generator did not keep its schedule."""
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
    """Return the most misses among `requests` that still prove a miss rate below 1 %; -1 if none do.

    One-sided binomial test: with a true rate of 1 %, so few misses or fewer happen in at
    most 1 % of the runs.
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
