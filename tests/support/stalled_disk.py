"""A disk that fails, or stops to answer, under a running process: strace changes system calls.

strace attaches to those threads alone, so that no system call of another thread is slowed down.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import components
from waiting import PATIENCE, wait_until

SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
"""Kernel setting. If it is above 0, only root may trace a process that it did not start."""


def can_attach() -> bool:
    """Return whether strace is installed and may attach to a process that it did not start."""
    unrestricted = os.geteuid() == 0 or not SCOPE.exists() or SCOPE.read_text().strip() == "0"
    return components.program_path("strace") is not None and unrestricted


@contextmanager
def injected(pid: int, threads: Sequence[str], rule: str) -> Iterator[None]:
    """Inject an error or a delay into the system calls of some threads, until the context ends.

    Args:
        pid: The process.
        threads: The threads' names; the kernel keeps the first 15 characters of each.
        rule: A system call and its fault in the syntax of strace: `fdatasync:error=EIO`.
    """
    tasks = Path(f"/proc/{pid}/task")
    names = {name[:15] for name in threads}
    chosen = [task for task in tasks.iterdir() if (task / "comm").read_text().strip() in names]
    assert len(chosen) == len(names), f"expected one thread of each name: {sorted(names)}"
    inject = ["-e", f"trace={rule.partition(':')[0]}", "-e", f"inject={rule}"]
    attach = [argument for task in chosen for argument in ("-p", task.name)]
    program = components.require_program("strace")
    command = [program, "-qq", "-o", os.devnull, *inject, *attach]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as tracer:

        def attached() -> bool:
            assert tracer.poll() is None, tracer.stderr.read() if tracer.stderr else ""
            line = f"TracerPid:\t{tracer.pid}\n"
            return all(line in (task / "status").read_text() for task in chosen)

        try:
            wait_until(attached, f"strace to attach to {sorted(names)}")
            yield
        finally:
            tracer.terminate()
            tracer.wait(PATIENCE)


def stalled_writes(pid: int, thread: str) -> AbstractContextManager[None]:
    """Delay every `pwrite64` of a thread until the context ends."""
    return injected(pid, [thread], "pwrite64:delay_enter=3600s")
