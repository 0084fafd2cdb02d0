"""Progress and results of a change request on a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from scorer.commands.output import print_json, print_table
from scorer.commands.platform_options import plain, print_backtest, print_gates, print_segments
from scorer.release.errors import UnreachableError
from scorer.release.model import ChangeState, Outcome

if TYPE_CHECKING:
    from scorer.sdk import PlatformClient
    from scorer.sdk.results import ChangeDetail, Readout

PASSED, FAILED, INCONCLUSIVE = 0, 1, 3
_WAIT_SECONDS = 5.0
_PATIENCE_SECONDS = 120.0


def say(*, quiet: bool) -> Callable[[str], None]:
    """Return a function that prints to stdout or, if stdout is used for JSON, to stderr."""
    return lambda words: typer.echo(words, err=quiet)


class Progress:
    """Prints one line per event, and updates one line with the progress of the running step.

    If the output is not a terminal, each progress message is a separate line.

    Args:
        quiet: Whether to print to stderr.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._stream = sys.stderr if quiet else sys.stdout
        self._updates = self._stream.isatty()
        self._shown = 0

    def event(self, words: str) -> None:
        """Print an event on a separate line."""
        self._clear()
        print(words, file=self._stream, flush=True)

    def running(self, words: str) -> None:
        """Replace the progress line of the running step."""
        if not self._updates:
            self.event(words)
            return
        self._clear()
        line = words[: shutil.get_terminal_size().columns - 1]
        self._stream.write(line)
        self._stream.flush()
        self._shown = len(line)

    def _clear(self) -> None:
        if self._shown:
            self._stream.write("\r" + " " * self._shown + "\r")
            self._shown = 0


def follow(platform: PlatformClient, change: str, *, json: bool) -> int:
    """Stream progress until the change request is final.

    Args:
        platform: Client of the platform.
        change: Id of the change request, for example cr-000017.
        json: Print the result as JSON on stdout, and progress on stderr.

    Returns:
        The exit code of `exit_code`.

    Raises:
        UnreachableError: The platform did not answer for two minutes.
    """
    progress = Progress(quiet=json)
    after, running, away_since = 0, "", None
    while True:
        try:
            found = platform.events(change, after=after, wait=_WAIT_SECONDS)
            for event in found.items:
                time_of_day = event.at.astimezone().strftime("%H:%M:%S")
                progress.event(f"{time_of_day}  {event.state:<10}  {event.message}")
            after = found.next
            if found.is_final:
                break
            if not found.items and (words := _running(platform.change(change))) != running:
                running = words
                progress.running(f"          {found.state:<10}  {words}")
            away_since = None
        except UnreachableError as error:
            now = time.monotonic()
            if away_since is None:
                progress.event(f"          waiting     {error}")
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
    """Return the exit code of a final change request: 0 passed, 1 failed, 3 inconclusive."""
    change = detail.change
    if change.state is not ChangeState.DONE:
        return FAILED
    return {Outcome.PASS: PASSED, Outcome.FAIL: FAILED}.get(
        change.verdict or Outcome.INCONCLUSIVE, INCONCLUSIVE
    )


def print_readout(found: Readout) -> None:
    """Print gates and summary as tables."""
    state = "final" if found.is_final else "so far"
    verdict = found.verdict or "none yet"
    typer.echo(f"{found.change} at {found.checkpoint}, {state}: {found.rows} rows, verdict {verdict}")
    reports = [one for one in (found.segments, found.canary) if one is not None]
    for report in reports:
        for words in report.worse:
            typer.echo(f"worth a look ({report.stage}): {words}")
    print_gates(found.gates)
    rows = [(name, _shown(value)) for name, value in found.summary.items()]
    print_table(("summary", ""), rows, empty="no request has been observed yet")
    for report in reports:
        print_segments(report)
    typer.echo(f"with every figure: scorer change readout {found.change} -o readout.html")


def _running(detail: ChangeDetail) -> str:
    return next(
        (step.words or step.name for step in detail.steps if step.status == "running"), detail.change.note
    )


def _conclude(detail: ChangeDetail) -> None:
    change = detail.change
    typer.echo("")
    if detail.backtest:
        print_backtest(detail.backtest)
    if detail.gates:
        print_gates(detail.gates)
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
