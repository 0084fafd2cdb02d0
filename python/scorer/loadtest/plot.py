"""A plot of a load test: latency over time, and latency by percentile."""

from __future__ import annotations

from pathlib import Path

from scorer.loadtest.plan import LoadPlan
from scorer.loadtest.report import Report
from scorer.loadtest.verdict import LoadVerdict


def save_plot(path: Path, plan: LoadPlan, report: Report, verdict: LoadVerdict) -> None:
    """Plot a load test and write the figure to a file.

    Args:
        path: The file to write. Its suffix determines the format, such as .png or .svg.
        plan: The plan of the load test.
        report: The report of the run.
        verdict: The verdict on the run.
    """
    from matplotlib.figure import Figure

    # pyplot is not used, because it has global state and may need a display.
    figure = Figure(figsize=(10, 4), layout="constrained")
    over_time, along = figure.subplots(1, 2)
    windows = [window for window in report.windows if window.latency_us.count]
    starts = [window.start for window in windows]
    for name in ("max", "p99", "p50"):
        over_time.plot(
            starts, [getattr(window.latency_us, name) / 1000 for window in windows], marker=".", label=name
        )
    over_time.set_xlabel(f"seconds (windows of {plan.settings.window:g} s)")
    over_time.set_ylabel("milliseconds from the intended send time")
    # The x axis is logarithmic in 1 / (1 - share), so 90 %, 99 % and 99.9 % are equally spaced. Points above
    # the share of a single request are left out, because they would only repeat the maximum.
    points = [
        (1 / (1 - share), us / 1000) for share, us in report.curve if (1 - share) * report.answered >= 1
    ]
    along.plot([x for x, _ in points], [y for _, y in points], marker=".")
    along.set_xscale("log")
    along.set_xticks([1, 2, 10, 100, 1_000, 10_000, 100_000])
    along.set_xticklabels(["0", "50 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %"], rotation=30)
    along.set_xlabel("share of the answers at or below")
    for axis in (over_time, along):
        axis.set_yscale("log")
        axis.grid(visible=True, which="major", alpha=0.3)
        if verdict.sla_ms is not None:
            axis.axhline(verdict.sla_ms, color="tab:red", linestyle="--", label=f"SLA {verdict.sla_ms:g} ms")
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    methods = ", ".join(plan.settings.methods)
    figure.suptitle(f"{methods} at {plan.settings.rate:g}/s: {verdict.outcome}")
    figure.savefig(path, dpi=120)
