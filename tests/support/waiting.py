"""Waiting until a condition holds, with a time limit and without fixed sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

PATIENCE = 30.0
"""Seconds until a test gives up. Generous: a loaded machine is no failure; a hang is."""


def wait_until(condition: Callable[[], Value], what: str = "", *, seconds: float = PATIENCE) -> Value:
    """Asks until the answer is true and returns it; exceptions of the last try are shown on timeout."""
    deadline = time.monotonic() + seconds
    pause = 0.002
    while True:
        failure: Exception | None = None
        try:
            value = condition()
        except Exception as error:
            failure = error
        else:
            if value:
                return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what or condition}") from failure
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
