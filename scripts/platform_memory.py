"""Measure the platform's memory while a TEST is observed and its report is viewed.

The process imports what the platform imports. Its collector reads a growing log, gates are evaluated, and
threads request reports like those of the web server. Another process creates the bundles and the log, so that
their memory is not counted. One round represents a minute: with the default options, an hour of a TEST. The
script prints resident memory after rounds, and the part of it that is mapped files (libraries).
"""

from __future__ import annotations

import argparse
import gc
import importlib
import subprocess
import sys
import tempfile
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/support"))

_PLATFORM = ("scorer.web.server", "scorer.web.app", "scorer.web.api.application", "scorer.release.open")
_SHOWN = 12
"""Number of rounds that are printed."""


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds",
        type=int,
        default=60,
        help="Number of batches that are collected, each followed by reports.",
    )
    parser.add_argument("--rows", type=int, default=1000, help="Number of observations in a batch.")
    parser.add_argument("--reports", type=int, default=4, help="Number of reports after each batch.")
    parser.add_argument("--threads", type=int, default=8, help="Number of threads that request reports.")
    parser.add_argument(
        "--trace", action="store_true", help="List the lines of code with the largest growth of memory."
    )
    parser.add_argument("--write", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        _write(Path(options.write), options.rounds, options.rows)
        return
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        command = [sys.executable, __file__, "--write", str(root)]
        subprocess.run(
            [*command, "--rounds", str(options.rounds), "--rows", str(options.rows)], check=True, timeout=3600
        )
        _measure(root, options)


def _write(root: Path, rounds: int, rows: int) -> None:
    """Create the bundles, and one segment of the log for each round."""
    from bundles import tiny_score_bundle
    from observing import Log, World

    for variant in (1, 2):
        tiny_score_bundle(root / f"score-{variant}", variant=variant)
    world = World(root / "writer", root / "score-1", root / "score-2")
    log = Log(root / "written")
    for number in range(rounds):
        log.append(world.records(rows, first=number * rows, step_us=60_000_000 // rows))


def _measure(root: Path, options: argparse.Namespace) -> None:
    from scorer.memory import bound_memory

    _show("started")
    bound_memory()
    for name in _PLATFORM:
        importlib.import_module(name)
    _show("libraries imported")
    from observing import ADMIN, World

    world = World(root / "platform", root / "score-1", root / "score-2")
    readouts, change = world.readouts, world.change
    _show("opened")
    log = world.logs["live-1"].path
    log.mkdir(parents=True)
    began = time.monotonic()
    with ThreadPoolExecutor(options.threads) as threads:
        for number, segment in enumerate(sorted((root / "written").iterdir()), 1):
            segment.rename(log / segment.name)
            readouts.collect()
            readouts.judge(change)
            view = [threads.submit(readouts.readout, ADMIN, change.id) for _ in range(options.reports)]
            for report in view:
                report.result()
            if number % max(options.rounds // _SHOWN, 1) == 0 or number in (1, options.rounds):
                _show(f"{number * options.rows:,} observed")
            if options.trace and number == 2:
                tracemalloc.start(8)
                before = tracemalloc.take_snapshot()
    print(
        f"{options.rounds} rounds of {options.rows:,} observations, {options.rounds * options.reports:,} "
        f"reports in {time.monotonic() - began:.0f} s"
    )
    if options.trace:
        gc.collect()
        for one in tracemalloc.take_snapshot().compare_to(before, "lineno")[:15]:
            print(one)


def _show(what: str) -> None:
    """Print resident memory, mapped files, the memory of pyarrow and the number of Python objects."""
    pyarrow = sys.modules.get("pyarrow")
    arrow = ""
    if pyarrow is not None:
        pool = pyarrow.default_memory_pool()
        arrow = f", pyarrow ({pool.backend_name}) {pool.bytes_allocated() / 1e6:4.0f} MB in use"
    _, resident, mapped = (
        int(pages) * 4096 / 1e6 for pages in Path("/proc/self/statm").read_text().split()[:3]
    )
    print(
        f"{what:<20} resident {resident:4.0f} MB (mapped files {mapped:4.0f} MB){arrow}, "
        f"{len(gc.get_objects()):,} objects",
        flush=True,
    )


if __name__ == "__main__":
    main()
