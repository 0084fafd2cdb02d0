"""Output of the demo: numbered steps with the time since the start, lines and compact tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

_PIPE_WIDTH = 240


class Output:
    """Writes to a terminal. A file or a pipe receives the same lines without progress bars.

    Args:
        console: destination; default: stdout.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        if not self._console.is_terminal:
            # A pipe has no width, and wrapped lines are hard to search.
            self._console = Console(file=self._console.file, highlight=False, width=_PIPE_WIDTH)
        self._number = 0
        self._started = time.perf_counter()
        self.step_name = "start"
        self.seconds: dict[str, float] = {}

    @property
    def elapsed(self) -> float:
        """Seconds since this object was made."""
        return time.perf_counter() - self._started

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Print a numbered headline, and record the duration of the step in `seconds`."""
        self._number += 1
        self.step_name = title
        self._console.print(f"[dim]{self.elapsed:4.0f} s[/]  [bold cyan]{self._number}. {title}[/]")
        started = time.perf_counter()
        yield
        self.seconds[title] = round(time.perf_counter() - started, 2)

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Show `text` on a terminal while the block runs. Other outputs receive nothing."""
        if self._console.is_terminal:
            with self._console.status(f"{text} ..."):
                yield
        else:
            yield

    def line(self, text: str = "") -> None:
        """Print one line, indented under the step. Rich markup applies."""
        self._console.print(f"   {text}" if text else "", soft_wrap=True)

    def command(self, *words: str) -> None:
        """Print a command line as a user would type it."""
        self.line(f"[bold]$ {escape(' '.join(words))}[/]")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table without rules; the first column is text, the others are numbers."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for index, column in enumerate(columns):
            table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
        for row in rows:
            table.add_row(*map(escape, row))
        with self._console.capture() as captured:
            self._console.print(table)
        for text in captured.get().splitlines():
            self._console.out(f"     {text.rstrip()}", highlight=False)

    @contextmanager
    def progress(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a progress bar on a terminal. Yields a function of the number done, of `total`."""
        if not self._console.is_terminal:
            yield lambda _: None
            return
        columns = (
            TextColumn("   {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, transient=True) as shown:
            task = shown.add_task(text, total=total)
            yield lambda done: shown.update(task, completed=done)
