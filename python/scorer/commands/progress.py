"""Bars on stderr, where somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bytes_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar that is told what is done and what is to be done; None where nobody watches."""
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
    """A bar of `total` steps that is told each one that is over, by name."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda name: progress.update(task, advance=1, description=f"{what}: {name}")
