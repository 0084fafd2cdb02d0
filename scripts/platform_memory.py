"""Measures the platform's memory while a TEST is observed and its report is viewed.

The parts that use memory run as in the platform's process: the collector reads a log that grows, gates are
evaluated, and threads request reports, as those of the web server do. Prints resident memory by holder.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/support"))

from bundles import tiny_score_bundle
from observing import ADMIN, World


def show(what: str) -> None:
    """Print resident memory, and what pyarrow and Python hold of it."""
    import pyarrow

    pages = int(Path("/proc/self/statm").read_text().split()[1])
    pool = pyarrow.default_memory_pool()
    print(
        f"{what:<24} resident {pages * 4096 / 1e6:5.0f} MB, pyarrow ({pool.backend_name}) "
        f"{pool.bytes_allocated() / 1e6:4.0f} MB in use, {len(gc.get_objects()):,} objects",
        flush=True,
    )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="Batches collected, each followed by reports.")
    parser.add_argument("--rows", type=int, default=4000, help="Observations of a batch.")
    parser.add_argument("--reports", type=int, default=4, help="Reports after each batch.")
    parser.add_argument("--threads", type=int, default=8, help="Threads that request reports.")
    parser.add_argument("--trace", action="store_true", help="List the lines that hold most memory.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        for variant in (1, 2):
            tiny_score_bundle(root / f"score-{variant}", variant=variant)
        world = World(root / "platform", root / "score-1", root / "score-2")
        readouts, change = world.readouts, world.change
        show("opened")
        with ThreadPoolExecutor(options.threads) as threads:
            for number in range(1, options.rounds + 1):
                first = (number - 1) * options.rows
                world.logs["live-1"].append(world.records(options.rows, first=first, step_us=10_000))
                readouts.collect()
                readouts.judge(change)
                view = [threads.submit(readouts.readout, ADMIN, change.id) for _ in range(options.reports)]
                for report in view:
                    report.result()
                show(f"{number * options.rows:,} observed")
                if options.trace and number == 2:
                    tracemalloc.start(8)
                    before = tracemalloc.take_snapshot()
        if options.trace:
            gc.collect()
            for one in tracemalloc.take_snapshot().compare_to(before, "lineno")[:15]:
                print(one)


if __name__ == "__main__":
    main()
