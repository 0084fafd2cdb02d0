"""The processor time of a process, as the kernel counts it."""

from __future__ import annotations

import time


def processor_seconds(pid: int) -> float:
    """Return the user and system time of all threads of a process, as accurate as the kernel's scheduler.

    Args:
        pid: The process.

    Raises:
        OSError: There is no such process.
    """
    # The clock of a process, as `clock_getcpuclockid` computes its number on Linux.
    return time.clock_gettime((~pid << 3) | 2)
