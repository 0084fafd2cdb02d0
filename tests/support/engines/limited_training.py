"""Trains under a limit of memory: limited_training.py MIB EXPERIENCE LEARN_TOML TASK OUTPUT.

The limit holds for all memory that the process allocates (RLIMIT_DATA), on top of what it has after loading
its libraries. The program prints the report of `scorer learn train --json`, or its error.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path


def allocated() -> int:
    """Return the bytes that count towards RLIMIT_DATA."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmData"))


def main(limit: str, experience: str, config: str, task: str, output: str) -> None:
    """Run `scorer learn train`."""
    from scorer.memory import bound_memory

    bound_memory()
    import duckdb  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import scipy.stats  # noqa: F401
    import sklearn.isotonic
    import sklearn.metrics  # noqa: F401
    import xgboost  # noqa: F401

    from scorer.cli import app
    from scorer.errors import ScorerError

    most = allocated() + (int(limit) << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    arguments = [
        "learn",
        "train",
        experience,
        "--config",
        config,
        "--task",
        task,
        "--output",
        output,
        "--json",
    ]
    try:
        app(arguments, standalone_mode=False)
    except ScorerError as error:
        print(json.dumps({"error": str(error)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
