"""Progress bars on stderr, if it is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bytes_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar. Yields a function of the bytes done and the total; None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=max(total, 1))


@contextmanager
def steps_bar(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar of `total` steps. Yields a function that takes the name of each completed step."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda name: progress.update(task, advance=1, description=f"{what}: {name}")


@contextmanager
def trainings_bar(total: int) -> Iterator[tuple[Callable[[str], None], Callable[[int, int], None] | None]]:
    """Show a progress bar of `total` trainings and the trees of the current one.

    Yields a function that takes the name of each completed training, and one that takes the number of trees
    that the current training has and will have; the latter is None without a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda _: None, None
        return
    from rich.console import Console
    from rich.progress import Progress

    done, last = 0, ""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("training", total=total)

        def advance(name: str) -> None:
            nonlocal done, last
            done, last = done + 1, name
            progress.update(task, completed=done, description=f"training: {name}")

        def on_tree(trees: int, most: int) -> None:
            text = f"training: {last + ', ' if last else ''}tree {trees} of {most}"
            progress.update(task, completed=done + trees / (most + 1), description=text)

        yield advance, on_tree


@contextmanager
def rows_bar(what: str) -> Iterator[Callable[[int, int | None], None] | None]:
    """Show a progress bar of rows, with their rate since the start of the bar.

    Yields a function of the rows done and their total, which is None while it is unknown; without a terminal,
    yields None.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    began = time.monotonic()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)

        def advance(done: int, total: int | None) -> None:
            rate = done / max(time.monotonic() - began, 1e-3)
            text = f"{what}: {done:,} rows, {rate:,.0f}/s"
            progress.update(task, completed=done, total=total, description=text)

        yield advance


@contextmanager
def work_bar(what: str) -> Iterator[Callable[[str, int, int | None], None] | None]:
    """Show a progress bar of work with several steps.

    Yields a function of the step's name, what of it is done, and its total, which is None while it is
    unknown; without a terminal, yields None.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda name, done, total: progress.update(
            task, completed=done, total=total, description=f"{what}: {name}"
        )
