"""Child processes for long work of the platform. They end with it.

The standard input of a child is a pipe that nothing is written to, and the end of that pipe is the end of the
platform, however that came about.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def start(
    module: str, folder: Path, errors: Path, *, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start `python -m MODULE FOLDER`.

    Args:
        module: The module, which calls `end_with_the_platform`.
        folder: Its argument: where its job is, and where its result belongs.
        errors: File that its stderr is written to.
        environment: Its environment; None: that of this process.
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
    """Kill a child, if it still runs, and wait for its end."""
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def end_with_the_platform() -> None:
    """Have this child end when the platform does."""
    threading.Thread(target=_follow_the_platform, daemon=True).start()


def _follow_the_platform() -> None:
    # Not by `sys.stdin`: its lock would be held when the interpreter ends, which aborts the process.
    while os.read(0, 1):
        pass
    os._exit(2)


def write_progress(file: Path, progress: Mapping[str, Any]) -> None:
    """Replace the progress that a child reports. Nothing is lost with it, so it is not made durable."""
    partial = file.with_name(f".{file.name}")
    partial.write_text(json.dumps(progress))
    partial.replace(file)
