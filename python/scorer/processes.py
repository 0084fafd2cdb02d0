"""What main functions of long-running processes share: the end by signals, and lines about progress."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Set the event on SIGTERM and SIGINT. A second signal ends the process at once.

    Outside the main thread, which alone receives signals, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say_with_time(line: str) -> None:
    """Write a line with the time of day to stderr."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {line}\n")
    sys.stderr.flush()
