"""Child processes for long jobs of the platform. They end when the platform ends.

The standard input of a child is a pipe to which the platform writes nothing. The kernel closes the pipe when
the platform ends for any reason, and the child then exits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scorer.errors import ScorerError

_NICE: Final = 10
"""Priority of a child."""
_EVERY: Final = 0.5
"""Interval of progress reports in seconds."""


def start(
    module: str, folder: Path, errors: Path, *, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start `python -m MODULE FOLDER`.

    Args:
        module: The module to run, which must call `end_with_the_platform` or `run_child`.
        folder: The argument of the module: the folder of its job and its result.
        errors: File for the child's stderr.
        environment: Environment of the child; None: that of this process.
    """
    with errors.open("wb") as stderr:
        return subprocess.Popen(  # noqa: S603 - this interpreter, this package
            [sys.executable, "-m", module, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=environment,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a child if it still runs, and wait until it has ended."""
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def end_with_the_platform() -> None:
    """Make this child process exit when the platform ends."""
    threading.Thread(target=_follow_the_platform, daemon=True).start()


def _follow_the_platform() -> None:
    # `sys.stdin` is not used: its lock would be held when the interpreter exits, which aborts the process.
    while os.read(0, 1):
        pass
    os._exit(2)


def write_progress(file: Path, progress: Mapping[str, Any]) -> None:
    """Replace the progress that a child reports. It is not synced to disk, because it may be lost."""
    partial = file.with_name(f".{file.name}")
    partial.write_text(json.dumps(progress))
    partial.replace(file)


def reporter(write: Callable[[str, float], None]) -> Callable[[str, float], None]:
    """Return a function that reports a step and its share by `write`, at most every half second."""
    reported = 0.0

    def advance(step: str, share: float) -> None:
        nonlocal reported
        if (now := time.monotonic()) - reported >= _EVERY:
            reported = now
            write(step, share)

    return advance


def run_child(arguments: Sequence[str] | None, work: Callable[[Path], None]) -> int:
    """Do the job of a folder, as the main function of a process with low priority.

    Args:
        arguments: The folder; None for that of the command line, in a process that ends with the platform.
        work: Does the job and writes its result into the folder.

    Returns:
        0 if there is a result; 1 if the job failed, with the reason in one line on stderr.
    """
    folder = Path((sys.argv[1:] if arguments is None else arguments)[0])
    if arguments is None:
        end_with_the_platform()
        os.nice(_NICE)
    try:
        work(folder)
    except (ScorerError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
