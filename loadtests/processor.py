"""The processor time and memory of a process, as the kernel counts them."""

from __future__ import annotations

import time
from pathlib import Path

from loadtests.openloop import Load


def processor_seconds(pid: int) -> float:
    """Return the user and system time of all threads of a process, as accurate as the kernel's scheduler.

    Args:
        pid: The process.

    Raises:
        OSError: There is no such process.
    """
    # The clock of a process, as `clock_getcpuclockid` computes its number on Linux.
    return time.clock_gettime((~pid << 3) | 2)


def microseconds_per_request(load: Load, pid: int, rate: float, seconds: float) -> float:
    """Return the processor time of a server per request, in microseconds.

    Args:
        load: Load on the server.
        pid: The server's process.
        rate: Requests per second, which the server sustains.
        seconds: Length of the measurement.
    """
    before = processor_seconds(pid)
    report = load.run(rate, seconds, warmup_seconds=0.0)
    return (processor_seconds(pid) - before) / max(report.requests, 1) * 1e6


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process in MB; 0 if the kernel does not state it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0
