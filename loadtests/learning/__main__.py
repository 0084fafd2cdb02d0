"""`make bench-learning`: measure every figure of learning and of its peers in one process.

Missed targets are shown and are not a failure. If a part fails, the lines that it has written are kept and
the other parts are still measured; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback

from loadtests.figures import read
from loadtests.learning.options import SEEDS, Options, parts
from loadtests.report import closing_words
from loadtests.runs import add_run_options, open_run


def main() -> int:
    """Measure the parts that the command line names. Return 1 if a part failed."""
    known = parts()
    parser = argparse.ArgumentParser(
        prog="make bench-learning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="parts:\n" + "\n".join(f"  {part.name:12} {part.about}" for part in known.values()),
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="what to measure; none: everything")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    add_run_options(parser)
    asked = parser.parse_args()
    names = list(dict.fromkeys(asked.parts)) or list(known)
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"no such part: {', '.join(unknown)}; there are: {', '.join(known)}")
    options = Options(seeds=SEEDS[: 2 if asked.smoke else asked.seeds], quick=asked.smoke)
    figures = open_run(asked)
    started, failed = time.monotonic(), []
    for position, name in enumerate(names, start=1):
        sys.stdout.write(f"\n== {name}: {known[name].about} ({position} of {len(names)})\n")
        sys.stdout.flush()
        figures.group, began = f"learning.{name}", time.monotonic()
        try:
            importlib.import_module(known[name].module).run(figures, options)
        except Exception:
            traceback.print_exc()
            failed.append(name)
        sys.stdout.write(f"   {time.monotonic() - began:.0f} s\n")
    sys.stdout.write(f"\n== {figures.path} ({(time.monotonic() - started) / 60:.0f} min)\n")
    sys.stdout.write(closing_words(read(figures.path)))
    if failed:
        sys.stderr.write(f"error: failed, what they had measured is kept: {', '.join(failed)}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
