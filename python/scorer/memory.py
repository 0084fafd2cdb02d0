"""Limits of the C library's allocator and of garbage collection, for long processes with many threads."""

from __future__ import annotations

import ctypes
import gc
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of glibc's `mallopt`."""
_ARENAS = 2
_LARGE_BYTES = 256 << 10
_TOP_BYTES = 1 << 20


def bound_memory() -> None:
    """Have freed memory returned to the system. Call it before threads are started and pyarrow is imported.

    glibc gives each thread a heap of its own, up to eight for each core, and keeps arrays of up to 32 MB in
    them, so that a process with a pool of threads holds many times what it uses. Other C libraries ignore the
    call. Arrow allocates by the C library too; the other allocators that it contains keep freed memory.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        set_parameter = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    set_parameter(_ARENA_MAX, _ARENAS)
    set_parameter(_MMAP_THRESHOLD, _LARGE_BYTES)
    set_parameter(_TRIM_THRESHOLD, _TOP_BYTES)


def keep_started_objects() -> None:
    """Exclude the objects that exist now from later garbage collections.

    Modules, routes and templates of a long process live until its end. A full collection that visits them
    stops all threads for up to a quarter of a second.
    """
    gc.collect()
    gc.freeze()
