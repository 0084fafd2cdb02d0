"""Programs in the environments of Spark and Ray, which also import the project's package."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python_of(engine: str) -> Path:
    """The interpreter of an environment that `make spark` or `make ray` installed."""
    return ROOT / f".build/{engine}/bin/python"


def run_program(
    engine: str,
    program: Path,
    arguments: Sequence[str],
    home: Path,
    *,
    prefix: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    code: int = 0,
) -> str:
    """Run a program in the environment of an engine, and return what it wrote on stdout.

    Args:
        engine: "spark" or "ray".
        program: The program's file.
        arguments: Its arguments.
        home: Directory in which it runs and which is its home.
        prefix: A command that runs it.
        variables: Further environment variables.
        code: The exit code that the program must have.
    """
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith(("SCORER_", "PYTHON", "SPARK", "RAY"))
    }
    # Ray's Unix sockets are in the directory for temporary files, and their paths have at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="engine-") as scratch:
        done = subprocess.run(
            [*prefix, python_of(engine), program, *arguments],
            env={
                **inherited,
                "HOME": str(home),
                "TMPDIR": scratch,
                "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT)]),
                # Spark's workers would take another interpreter otherwise.
                "PYSPARK_PYTHON": str(python_of(engine)),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "RAY_USAGE_STATS_ENABLED": "0",
                **(variables or {}),
            },
            cwd=home,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert done.returncode == code, f"{done.stdout[-4000:]}\n{done.stderr[-6000:]}"
    return done.stdout
