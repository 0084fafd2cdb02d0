"""A disk that stops to answer under a running process: strace holds one thread in its `pwrite64`.

strace attaches to that thread alone, so that no system call of another thread is slowed down.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import components
from waiting import PATIENCE, wait_until

SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
"""Above 0, only root may trace a process that it did not start."""


def can_attach() -> bool:
    """Return whether strace is installed and may attach to a process that it did not start."""
    unrestricted = os.geteuid() == 0 or not SCOPE.exists() or SCOPE.read_text().strip() == "0"
    return components.program_path("strace") is not None and unrestricted


@contextmanager
def stalled_writes(pid: int, thread: str) -> Iterator[None]:
    """Let no `pwrite64` of a thread begin before the context ends.

    Args:
        pid: The process.
        thread: The thread's name; the kernel keeps its first 15 characters.
    """
    tasks = Path(f"/proc/{pid}/task")
    (task,) = [task for task in tasks.iterdir() if (task / "comm").read_text().strip() == thread[:15]]
    inject = ["-e", "trace=pwrite64", "-e", "inject=pwrite64:delay_enter=3600s"]
    program = components.require_program("strace")
    command = [program, "-qq", "-o", os.devnull, *inject, "-p", task.name]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as tracer:

        def attached() -> bool:
            assert tracer.poll() is None, tracer.stderr.read() if tracer.stderr else ""
            return f"TracerPid:\t{tracer.pid}\n" in (task / "status").read_text()

        try:
            wait_until(attached, f"strace to attach to {thread}")
            yield
        finally:
            tracer.terminate()
            tracer.wait(PATIENCE)
