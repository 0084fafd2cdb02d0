"""Measure groups of figures, each in a separate process, then print the table.

The lines of a group that fails are kept, and the other groups are still measured. The exit code is 1 if a
group failed. Missed targets are printed and are not a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from loadtests.figures import ROOT, Figures, read
from loadtests.options import PEERS_PYTHON, Group, Options, groups
from loadtests.report import closing_words
from loadtests.runs import add_run_options, open_run

# Time limit of a group, so that a group that hangs does not prevent the others.
LONGEST_SECONDS = 5400.0


def main() -> int:
    """Measure the groups that the command line names; return 1 if one failed."""
    known = groups()
    parser = argparse.ArgumentParser(
        prog="make bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="groups:\n" + "\n".join(f"  {group.name:10} {group.about}" for group in known.values()),
    )
    parser.add_argument(
        "groups", nargs="*", metavar="GROUP", help="groups to measure; default or all: every group"
    )
    parser.add_argument(
        "--decisions", type=int, default=Options.decisions, help="number of decisions of the policies"
    )
    parser.add_argument(
        "--seconds", type=float, default=Options.seconds, help="length of each load case in seconds"
    )
    parser.add_argument(
        "--demo", type=Path, default=Options.demo, help="output directory of the demo to serve"
    )
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="finer rate searches with more and longer windows, which take hours",
    )
    add_run_options(parser)
    asked = parser.parse_args()
    names = list(known) if not asked.groups or "all" in asked.groups else list(dict.fromkeys(asked.groups))
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"unknown group {', '.join(unknown)}; use {', '.join(known)} or all")

    options = Options(
        decisions=asked.decisions,
        seconds=asked.seconds,
        demo=asked.demo,
        smoke=asked.smoke,
        thorough=asked.thorough,
    )
    figures = open_run(asked)
    started = time.monotonic()
    failed = [
        name
        for position, name in enumerate(names, start=1)
        if not measure(known[name], figures.path, options, f"{position} of {len(names)}")
    ]
    title(f"{figures.path} ({(time.monotonic() - started) / 60:.0f} min)")
    sys.stdout.write(closing_words(read(figures.path)))
    if failed:
        sys.stderr.write(f"error: failed groups, whose lines are kept: {', '.join(failed)}\n")
    return 1 if failed else 0


def measure(group: Group, path: Path, options: Options, position: str = "") -> bool:
    """Append the figures of a group to a file, and return whether the group succeeded."""
    title(f"{group.name}: {group.about}" + (f" ({position})" if position else ""))
    if group.peers and not PEERS_PYTHON.exists():
        sys.stderr.write("error: the peers are not installed; run `make bench-peers`\n")
        return False
    command = [str(PEERS_PYTHON) if group.peers else sys.executable, "-m", "loadtests.bench"]
    command += ["--one", group.name, str(path), _packed(options)]
    environment = dict(os.environ)
    if group.peers:
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "python")])
    started = time.monotonic()
    code = _run(command, environment)
    sys.stdout.write(f"   {time.monotonic() - started:.0f} s\n")
    sys.stdout.flush()
    if code:
        sys.stderr.write(f"error: {group.name} ended with exit code {code}\n")
    return code == 0


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run a command and return its exit code. Ends its process group after the time limit or an interrupt."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        return process.wait(LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"error: time limit of {LONGEST_SECONDS / 60:.0f} minutes exceeded\n")
        return 1
    finally:
        if process.poll() is None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, number)
                    process.wait(10)


def one(name: str, path: str, packed: str) -> None:
    """Measure one group in this process."""
    module = importlib.import_module(groups()[name].module)
    module.run(Figures.reopen(Path(path), name), _unpacked(packed))


def _packed(options: Options) -> str:
    values = dataclasses.asdict(options)
    return json.dumps(values | {"only": sorted(options.only), "demo": str(options.demo)})


def _unpacked(packed: str) -> Options:
    values: dict[str, Any] = json.loads(packed)
    return Options(**values | {"only": frozenset(values["only"]), "demo": Path(values["demo"])})


def title(text: str) -> None:
    """Print a heading."""
    sys.stdout.write(f"\n== {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:])
    else:
        sys.exit(main())
