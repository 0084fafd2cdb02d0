"""What the demo tells while it runs: numbered steps, short lines, tables, progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

_PIPE_WIDTH = 132


class Narrator:
    """Writes to the terminal; to a file or pipe the same without moving parts.

    Args:
        console: where to; default: stdout.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._watched = self._console.is_terminal
        if not self._watched:
            # A pipe has no width of its own, and what wraps cannot be searched.
            self._console = Console(file=self._console.file, highlight=False, width=_PIPE_WIDTH)
        self._number = 0
        self.step_name = "start"
        self.seconds: dict[str, float] = {}

    @property
    def is_watched(self) -> bool:
        """Whether somebody sits at a terminal."""
        return self._watched

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """One numbered step; its time is kept in `seconds`."""
        self._number += 1
        self.step_name = title
        self._console.print(f"\n[bold cyan]{self._number}. {title}[/]")
        started = time.perf_counter()
        yield
        took = time.perf_counter() - started
        self.seconds[title] = round(took, 2)
        self._console.print(f"   [dim]{took:.1f} s[/]")

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Something that takes a while and has no measure of progress."""
        started = time.perf_counter()
        if self._console.is_terminal:
            with self._console.status(f"{text} ..."):
                yield
        else:
            yield
        self.say(f"{text} [dim]({time.perf_counter() - started:.1f} s)[/]")

    def say(self, text: str) -> None:
        """One line, indented under the step."""
        self._console.print(f"   {text}")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A small table; the first column is text, the others are numbers."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for index, column in enumerate(columns):
            table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    @contextmanager
    def progress(self, text: str, total: int) -> Iterator[Bar]:
        """A bar on a terminal; elsewhere a line every quarter."""
        if not self._console.is_terminal:
            yield Bar(total, _Quarters(self, text, total))
            return
        columns = (
            TextColumn("   {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console) as shown:
            task = shown.add_task(text, total=total)
            yield Bar(total, lambda done: shown.update(task, completed=done))


class _Quarters:
    def __init__(self, narrator: Narrator, text: str, total: int) -> None:
        self._narrator, self._text, self._total, self._said = narrator, text, total, 0

    def __call__(self, done: int) -> None:
        quarter = min(4, 4 * done // max(self._total, 1))
        if quarter > self._said:
            self._said = quarter
            self._narrator.say(f"{self._text}: {done:,} of {self._total:,}")


class Bar:
    """Where progress is reported to."""

    def __init__(self, total: int, show: Callable[[int], None]) -> None:
        self.total = total
        self._show = show

    def reach(self, done: int) -> None:
        """`done` of `total` so far."""
        self._show(done)
