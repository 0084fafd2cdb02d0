"""Waiting until a condition holds, with a time limit and without fixed sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

PATIENCE = 30.0
"""Seconds until a wait fails. The limit is generous, so that only a hang fails and not a loaded machine."""


def wait_until(condition: Callable[[], Value], what: str = "", *, seconds: float = PATIENCE) -> Value:
    """Call `condition` until its result is true; return the result.

    Raises:
        AssertionError: The condition was not true in time. Its cause is the exception of the last call.
    """
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
