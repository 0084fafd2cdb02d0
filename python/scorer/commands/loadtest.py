"""`scorer loadtest`: measure a server at a fixed rate against its SLA."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from scorer.loadtest.plan import LoadPlan
    from scorer.loadtest.ratesearch import RateWindow
    from scorer.loadtest.settings import LoadSettings


def loadtest(
    target: Annotated[str | None, typer.Option(help='Server: "host:port" or "unix:///path".')] = None,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            help="Checkpoint to call; repeatable for a mix. Default: the only one of a suitable kind."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help='Methods: noop, score, select_action, batch, mix, "score=8,select_action=2". Default: score.'
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Length of the measured part in seconds. Default: 10.")
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(
            help='Load over time as "LOADxSECONDS,...": "1x10,5x5" is 10 s at --rate, then 5 s at 5 times it.'
        ),
    ] = None,
    warmup: Annotated[
        float | None, typer.Option(help="Seconds of warm-up, not measured. Default: 1.")
    ] = None,
    connections: Annotated[int | None, typer.Option(help="Number of HTTP/2 connections. Default: 4.")] = None,
    threads: Annotated[int | None, typer.Option(help="Number of sending threads. Default: 1.")] = None,
    arrivals: Annotated[
        str | None, typer.Option(help="Distribution of the arrivals: uniform or poisson. Default: uniform.")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="Encoding of the features: named or dense. Default: named.")
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option(
            help="Features from a .parquet, .npy or .jsonl file. Default: generated from the schema."
        ),
    ] = None,
    batch_rows: Annotated[
        int | None, typer.Option(help="Number of rows of a batch request. Default: 100.")
    ] = None,
    sla_ms: Annotated[
        float | None, typer.Option(help="SLA of the verdict in milliseconds. Default: the checkpoint's.")
    ] = None,
    timeout_ms: Annotated[
        float | None, typer.Option(help="Time limit of a request in milliseconds. Default: 1000.")
    ] = None,
    deadline_ms: Annotated[
        float | None, typer.Option(help="Deadline that requests carry. Default: --timeout-ms.")
    ] = None,
    cancel: Annotated[
        float | None, typer.Option(help="Share of the requests that the generator cancels, 0 to 1.")
    ] = None,
    max_outstanding: Annotated[
        int | None,
        typer.Option(help="Limit on requests without a reply; further ones are errors. Default: 10000."),
    ] = None,
    max_lag_ms: Annotated[
        float | None,
        typer.Option(
            help="p99 send lag in ms above which there is no verdict. Default: SLA / 10, at least 1."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of arrivals and generated rows. Default: 1.")] = None,
    case: Annotated[
        Path | None,
        typer.Option(help="Directory of a case with settings. Options that are given have precedence."),
    ] = None,
    find_rate: Annotated[
        bool,
        typer.Option(
            "--find-rate",
            help="Search for the highest rate that meets the SLA, from --rate, and its bounds. --seconds is "
            "the length of a window, by default 1.5.",
        ),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="File for the report and the verdict.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="File for a plot (.png, .svg).")] = None,
) -> None:
    """Send at a fixed rate, measure from the intended send time, and compare the p99 with the SLA.

    Exit code 0: the SLA was met, or there is none. 1: it was violated. 2: no verdict, because the generator
    could not keep its schedule or the test could not be run. SIGINT and SIGTERM end the run early; it prints
    its summary and exits with 130 or 143.
    """
    from scorer.loadtest.settings import case_file, make_settings

    options = {
        "target": target,
        "checkpoints": tuple(checkpoint) if checkpoint else None,
        "methods": method,
        "rate": rate,
        "seconds": seconds,
        "steps": steps,
        "warmup_seconds": warmup,
        "connections": connections,
        "threads": threads,
        "arrivals": arrivals,
        "features": features,
        "rows": rows,
        "batch_rows": batch_rows,
        "sla_ms": sla_ms,
        "timeout_ms": timeout_ms,
        "deadline_ms": deadline_ms,
        "cancel": cancel,
        "max_outstanding": max_outstanding,
        "max_lag_ms": max_lag_ms,
        "seed": seed,
    }
    values: dict[str, Any] = {}
    if case is not None:
        described = case_file(case)
        typer.echo(f"{described.description}\ngoal: {described.goal}\n")
        values |= described.load
    values |= {name: value for name, value in options.items() if value is not None}
    settings = make_settings(values)
    if find_rate:
        _find_rate(settings)
    else:
        _run_once(settings, json_file, plot)


def _run_once(settings: LoadSettings, json_file: Path | None, plot: Path | None) -> None:
    from scorer.loadtest.plan import make_plan
    from scorer.loadtest.render import progress_line, result_table, verdict_lines
    from scorer.loadtest.runner import run_plan
    from scorer.loadtest.verdict import judge

    plan = make_plan(settings)
    _announce(plan)
    with _ended_by_signal() as (stop, exit_codes):
        report = run_plan(
            plan, lambda reached: typer.echo(progress_line(reached, settings.rate), err=True), stop=stop
        )
    verdict = judge(report, plan.sla_ms, settings.max_lag_ms)
    typer.echo(result_table(plan, report))
    typer.echo("")
    typer.echo(verdict_lines(plan, report, verdict))
    if json_file is not None:
        _write(json_file, json.dumps({"verdict": asdict(verdict), "report": report.model_dump()}, indent=2))
    if plot is not None:
        from scorer.loadtest.plot import save_plot

        try:
            save_plot(plot, plan, report, verdict)
        except (OSError, ValueError) as error:
            raise _unwritable(plot, error) from None
    raise typer.Exit(exit_codes[0] if exit_codes else verdict.outcome.exit_code)


@contextmanager
def _ended_by_signal() -> Iterator[tuple[threading.Event, list[int]]]:
    """Let the first SIGINT or SIGTERM end the run with its summary; the second one ends the process.

    Yields:
        An event that the signal sets, and a list that receives the exit code, 128 plus the signal's number.
    """
    stop, exit_codes = threading.Event(), list[int]()
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread may set handlers.
        yield stop, exit_codes
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        restore()
        exit_codes.append(128 + number)
        stop.set()

    for number, handler in before.items():
        # A process in a shell's background ignores SIGINT and must continue to do so.
        if handler is not signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield stop, exit_codes
    finally:
        restore()


def _find_rate(settings: LoadSettings) -> None:
    from scorer.loadtest.errors import LoadTestError
    from scorer.loadtest.plan import make_plan
    from scorer.loadtest.runner import rate_search

    plan = make_plan(settings)
    if plan.sla_ms is None:
        raise LoadTestError("--find-rate requires an SLA; set --sla-ms")
    if settings.steps:
        raise LoadTestError("--find-rate searches for one constant rate; remove the steps")
    _announce(plan)
    late = 0

    def told(window: RateWindow) -> None:
        nonlocal late
        late += window.is_late
        typer.echo(_window_line(window, plan.sla_ms), err=True)

    search = rate_search(plan, told)
    found = search.highest(plan.sla_ms)
    if not found.rate:
        typer.echo(f"FAIL: no rate down to {search.least:,.1f}/s meets the SLA of {plan.sla_ms:g} ms")
        raise typer.Exit(1)
    bounds = search.bounds(found, plan.sla_ms)
    low, high = ("unknown" if end is None else f"{end:,.0f}/s" for end in (bounds.low, bounds.high))
    typer.echo(f"highest rate with p99 within {plan.sla_ms:g} ms: {found.rate:,.0f}/s")
    typer.echo(f"holds at {low}, does not hold at {high} (96 % confidence each; {search.measured} windows)")
    if found.generator_bound:
        typer.echo("no verdict: the generator could not send faster; add --threads, or run it elsewhere")
        raise typer.Exit(2)
    if found.unfinished or None in (bounds.low, bounds.high):
        typer.echo(
            f"not settled: in {late} of {search.measured} windows the generator sent late; run the server "
            "and the generator on cores without other programs"
        )
        raise typer.Exit(2)


def _window_line(window: RateWindow, sla_ms: float | None) -> str:
    verdict = "holds" if sla_ms is not None and window.holds(sla_ms) else "does not hold"
    if verdict != "holds" and window.is_late:
        verdict = f"the generator sent {window.lag_us / 1000:.1f} ms late"
    failed = f", {window.failed:.1%} without an answer of the model" if window.failed else ""
    return f"{window.rate:>10,.0f}/s  p99 {window.p99_ms:.2f} ms{failed}: {verdict}"


def _announce(plan: LoadPlan) -> None:
    settings = plan.settings
    for info in plan.checkpoints:
        typer.echo(
            f"{info.checkpoint}: {info.bundle_name} {info.bundle[:19]}, {len(info.features)} features",
            err=True,
        )
    typer.echo(
        f"{', '.join(settings.methods)} to {settings.target}: {settings.rate:g}/s for {settings.seconds:g} s",
        err=True,
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n")
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: Exception) -> Exception:
    from scorer.loadtest.errors import LoadTestError

    return LoadTestError(f"{path}: cannot be written: {error}")
