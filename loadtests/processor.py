"""The processor time of a process, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path


def processor_seconds(pid: int) -> float:
    """Return the user and system time of all threads of a process, in steps of a clock tick (10 ms).

    Args:
        pid: The process.

    Raises:
        OSError: There is no such process.
    """
    # The name of the program, in parentheses, may contain spaces.
    counted = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = int(counted[11]), int(counted[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")
