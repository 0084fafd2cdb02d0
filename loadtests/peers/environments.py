"""The environments of the peers, installed on demand from pinned, hashed packages and separate from ours."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from loadtests.figures import ROOT

HOMES: Final = ROOT / ".build/peers"


def python_of(name: str) -> Path:
    """Return a peer's interpreter. Its environment is installed if it is missing or its pins have changed.

    Args:
        name: Name of the peer, as in ``requirements/peers-NAME.txt``.

    Raises:
        FileNotFoundError: uv is not installed.
        subprocess.CalledProcessError: The packages could not be installed.
    """
    pins = ROOT / f"requirements/peers-{name}.txt"
    home = HOMES / name
    stamp, digest = home / ".pins", hashlib.sha256(pins.read_bytes()).hexdigest()
    python = home / "bin/python"
    if not (python.exists() and stamp.exists() and stamp.read_text() == digest):
        sys.stdout.write(f"   installing {name} into {home.relative_to(ROOT)}\n")
        sys.stdout.flush()
        uv = _uv()
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, home], check=True)
        command = [uv, "pip", "sync", "--quiet", "--python", str(python), "--require-hashes", str(pins)]
        subprocess.run(command, check=True)
        stamp.write_text(digest)
    return python


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise FileNotFoundError("uv is needed to install the peers; `make build` puts it into .venv")
    return found
