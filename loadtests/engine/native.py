"""Our side without Python: Rust programs, each of which measures and prints one JSON line."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtests.engine.race import Lap
from loadtests.figures import ROOT
from loadtests.options import WORK


@functools.cache
def program(name: str, crate: str = "scorer-core") -> Path:
    """Build the example `name` of `crate` in release mode; return the path of its binary."""
    command = ["cargo", "build", "--release", "--locked", "--quiet", "-p", crate, "--example", name]
    subprocess.run([*command, "--message-format", "short"], cwd=ROOT, check=True)
    directory = json.loads(
        subprocess.run(
            ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        ).stdout
    )["target_directory"]
    return Path(directory, "release/examples", name)


def measured(name: str, *arguments: object, crate: str = "scorer-core") -> dict[str, Any]:
    """What it measured.

    Raises:
        RuntimeError: It failed.
    """
    command = [str(program(name, crate)), *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def kept(name: str, data: bytes) -> Path:
    """A file that a program is to read."""
    path = WORK / "given" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def in_turns(
    ours: Callable[[], dict[str, Any]], peers: Callable[[], dict[str, Lap]], turns: int
) -> tuple[dict[str, Any], dict[str, Lap]]:
    """Runs the program and the race of the peers alternately, and keeps the best of each.

    A program's calls have different rows: its median is the counterpart of the mean of the peers' best calls,
    where its fastest call would be that of the luckiest row.
    """
    found: list[dict[str, Any]] = []
    laps: dict[str, Lap] = {}
    for _ in range(turns):
        found.append(ours())
        for name, lap in peers().items():
            before = laps.get(name, lap)
            laps[name] = Lap(min(before.best, lap.best), min(before.median, lap.median))
    best = {clock: min(line[clock] for line in found) for clock in ("min_ns", "median_ns")}
    return found[-1] | best, laps
