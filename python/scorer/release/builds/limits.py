"""Limits of a process that reads files of users. The process sets them before it opens a file."""

from __future__ import annotations

import os
import resource

_FILES = 256
_NICE = 10
ENVIRONMENT = {
    # One thread, because the process shares its cores with the platform and each thread needs address space.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_PASSED_ON = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV")


def environment() -> dict[str, str]:
    """Return the environment of such a process, without passwords, tokens and addresses of the platform."""
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | ENVIRONMENT


def confine(*, memory_bytes: int, seconds: float, file_bytes: int) -> None:
    """Limit the resources of this process permanently.

    Args:
        memory_bytes: Limit on the address space in bytes.
        seconds: Limit on the processor time in seconds, after which SIGXCPU ends the process.
        file_bytes: Limit on the size of each file that the process writes, in bytes.
    """
    whole = max(1, round(seconds))
    for limit, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, whole),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, _FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(limit)
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (allowed, allowed))
    os.nice(_NICE)
