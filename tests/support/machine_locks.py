"""A lock that keeps the other processes of pytest-xdist waiting while a test that is marked `alone` runs.

Such a test measures, or starts so many processes that another test beside it would decide its result. Every
other test holds a lock that it shares; a test that is marked holds it exclusively. A second lock, held while
waiting for the first, keeps the order of arrival: without it, two processes that share the lock by turns
would keep a third one waiting for ever.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO


def directory(run: str) -> Path:
    """Return the directory of one test run's locks."""
    return Path(tempfile.gettempdir()) / f"scorer-tests-{os.getuid()}-{run}"


@contextmanager
def holding(where: Path, *, alone: bool) -> Iterator[None]:
    """Hold the machine's lock exclusively, or shared with other tests that do not need it exclusively."""
    where.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as files:
        turn: IO[bytes] = files.enter_context((where / "turn").open("ab"))
        machine: IO[bytes] = files.enter_context((where / "machine").open("ab"))
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(turn, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # Otherwise a process that the test started and did not end would keep the lock.
            fcntl.flock(machine, fcntl.LOCK_UN)
