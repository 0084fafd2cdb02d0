"""Text output of a load test for the terminal."""

from __future__ import annotations

from scorer.loadtest.plan import LoadPlan
from scorer.loadtest.report import LatencySummary, LoadProgress, Report
from scorer.loadtest.verdict import LoadOutcome, LoadVerdict

_COLUMNS = ("p50", "p90", "p99", "p99.9", "max")


def _ms(us: float) -> str:
    """Format microseconds as milliseconds with three significant digits."""
    value = us / 1000
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def progress_line(progress: LoadProgress, rate: float) -> str:
    """Return the line that is printed once per second.

    Args:
        progress: Figures so far.
        rate: Requests per second of the plan.
    """
    latency = progress.latency_us
    phase = "warm-up" if progress.warming_up else f"{progress.finished:>7,} done of {rate:,.0f}/s"
    return (
        f"{progress.elapsed:5.0f} s  {phase}  p50 {_ms(latency.p50)}  p99 {_ms(latency.p99)}  "
        f"max {_ms(latency.max)} ms  errors {progress.errors:,}  fallbacks {progress.fallbacks:,}"
    )


def _row(name: str, count: int, summary: LatencySummary) -> str:
    if not summary.count:
        return f"{name:<24}{count:>10,}" + f"{'-':>9}" * len(_COLUMNS)
    values = (summary.p50, summary.p90, summary.p99, summary.p999, summary.max)
    return f"{name:<24}{count:>10,}" + "".join(f"{_ms(value):>9}" for value in values)


def result_table(plan: LoadPlan, report: Report) -> str:
    """Return the table of latencies, the throughput, and the errors and fallbacks by kind.

    Args:
        plan: The plan of the load test.
        report: The report of the run.
    """
    settings = plan.settings
    header = f"{'milliseconds':<24}{'requests':>10}" + "".join(f"{name:>9}" for name in _COLUMNS)
    lines = [header, _row("answered", report.answered, report.latency_us)]
    if report.fallbacks:
        lines.append(_row("  by the model", report.model_latency_us.count, report.model_latency_us))
    if len(report.methods) > 1:
        lines += [_row(f"  {method.name}", method.requests, method.latency_us) for method in report.methods]
    if len(report.callers) > 1 or len(report.callers[0].steps) > 1:
        for caller in report.callers:
            lines += [
                _row(f"  {caller.name} {step.rate:,.0f}/s", step.requests, step.latency_us)
                for step in caller.steps
            ]
    if report.server_exec_us.count:
        lines.append(_row("server: evaluation", report.server_exec_us.count, report.server_exec_us))
    lines.append(_row("generator: send lag", report.send_lag_us.count, report.send_lag_us))
    throughput = report.answered / settings.seconds
    lines += [
        "",
        f"answered {throughput:,.1f} of {report.requests / settings.seconds:,.1f} per second "
        f"({settings.arrivals} arrivals, {settings.connections} connections, {settings.seconds:g} s "
        f"after {settings.warmup_seconds:g} s of warm-up)",
    ]
    if report.cancelled:
        lines.append(f"cancelled on purpose: {report.cancelled:,}")
    lines += [f"not answered: {name} {count:,}" for name, count in report.errors.items()]
    lines += [f"fallback: {reason} {count:,}" for reason, count in report.fallbacks.items()]
    return "\n".join(lines)


def verdict_lines(plan: LoadPlan, report: Report, verdict: LoadVerdict) -> str:
    """Return the verdict and its reasons in one or two lines.

    Args:
        plan: The plan of the load test.
        report: The report of the run.
        verdict: The verdict on the run.
    """
    subject = ", ".join(info.checkpoint for info in plan.checkpoints) or ", ".join(plan.settings.methods)
    if verdict.outcome is LoadOutcome.UNJUDGED:
        return f"no verdict: {subject} has no SLA (set --sla-ms)"
    if verdict.outcome is LoadOutcome.INVALID:
        return f"no verdict: {'; '.join(verdict.reasons)}"
    if verdict.sla_ms is None:
        return f"FAIL: {'; '.join(verdict.reasons)}"
    p99 = f"p99 {_ms(report.latency_us.p99)} ms (SLA {verdict.sla_ms:g} ms)"
    facts = (
        f"{verdict.met_share:.3%} of the requests within {verdict.sla_ms:g} ms, "
        f"{verdict.windows_met} of {verdict.windows} windows met"
    )
    if verdict.fallback_share:
        facts += f", {verdict.fallback_share:.2%} of them by a fallback (degraded)"
    if verdict.outcome is LoadOutcome.FAIL:
        return f"FAIL: {subject}: {p99}: {'; '.join(verdict.reasons)}\n      {facts}"
    proof = "" if verdict.proven else " (too few requests to prove it at 99 % confidence; run longer)"
    return f"PASS: {subject}: {p99} at {plan.settings.rate:g}/s{proof}\n      {facts}"
