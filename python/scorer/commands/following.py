"""Tells people at a terminal what happens to a change request, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from scorer.commands.output import print_json, print_table
from scorer.commands.platform_options import GATE_COLUMNS, gate_row, plain
from scorer.release.errors import UnreachableError
from scorer.release.model import ChangeState, Outcome

if TYPE_CHECKING:
    from scorer.sdk import PlatformClient
    from scorer.sdk.results import ChangeDetail, Readout

PASSED, FAILED, INCONCLUSIVE = 0, 1, 3
_WAIT_SECONDS = 5.0
_PATIENCE_SECONDS = 120.0


def say(*, quiet: bool) -> Callable[[str], None]:
    """Tells on stdout, or on stderr where stdout is for JSON."""
    return lambda words: typer.echo(words, err=quiet)


def follow(platform: PlatformClient, change: str, *, json: bool) -> int:
    """Tells every step until nothing follows; returns the exit code."""
    tell = say(quiet=json)
    after, running, away_since = 0, "", None
    while True:
        try:
            found = platform.events(change, after=after, wait=_WAIT_SECONDS)
            for event in found.items:
                time_of_day = event.at.astimezone().strftime("%H:%M:%S")
                tell(f"{time_of_day}  {event.state:<10}  {event.message}")
            after = found.next
            if found.is_final:
                break
            if not found.items and (words := _running(platform.change(change))) != running:
                # Nothing happened, and yet something is going on: what the running step says of itself.
                running = words
                tell(f"          {found.state:<10}  {words}")
            away_since = None
        except UnreachableError as error:
            now = time.monotonic()
            if away_since is None:
                tell(f"          waiting     {error}")
                away_since = now
            if now - away_since > _PATIENCE_SECONDS:
                raise
    detail = platform.change(change)
    if json:
        print_json(plain(detail))
    else:
        _conclude(detail)
    return exit_code(detail)


def exit_code(detail: ChangeDetail) -> int:
    """By what came of it."""
    change = detail.change
    if change.state is not ChangeState.DONE:
        return FAILED
    return {Outcome.PASS: PASSED, Outcome.FAIL: FAILED}.get(
        change.verdict or Outcome.INCONCLUSIVE, INCONCLUSIVE
    )


def print_readout(found: Readout) -> None:
    """Gates and summary as tables."""
    state = "final" if found.is_final else "so far"
    verdict = found.verdict or "none yet"
    typer.echo(f"{found.change} at {found.checkpoint}, {state}: {found.rows} rows, verdict {verdict}")
    print_table(GATE_COLUMNS, [gate_row(gate) for gate in found.gates], empty="no gates were judged yet")
    rows = [(name, _shown(value)) for name, value in found.summary.items()]
    print_table(("summary", ""), rows, empty="nothing was observed yet")
    typer.echo(f"every figure: scorer change readout {found.change} -o readout.html")


def _running(detail: ChangeDetail) -> str:
    return next(
        (step.words or step.name for step in detail.steps if step.status == "running"), detail.change.note
    )


def _conclude(detail: ChangeDetail) -> None:
    change = detail.change
    typer.echo("")
    if detail.gates:
        print_table(GATE_COLUMNS, [gate_row(gate) for gate in detail.gates], empty="")
    verdict = f", verdict {change.verdict}" if change.verdict else ""
    typer.echo(f"{change.id} is {change.state}{verdict}" + (f": {change.note}" if change.note else ""))
    typer.echo(f"next: scorer change readout {change.id} -o readout.html")
    if change.kind == "test" and exit_code(detail) == PASSED:
        typer.echo(f"      scorer change release {change.id}")


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(one)}" for key, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return str(value)
