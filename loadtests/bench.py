"""Measure groups of figures, each in a process of its own, then print the table.

A group that fails keeps the lines that it wrote, and the other groups are measured all the same; the exit
code is 1 if a group failed. Missed targets are shown and are not a failure.
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

# The longest that a group may take: one that hangs does not keep the others from being measured.
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
        "groups", nargs="*", metavar="GROUP", help="what to measure; none, or all: everything"
    )
    parser.add_argument("--decisions", type=int, default=Options.decisions, help="for the policies")
    parser.add_argument("--seconds", type=float, default=Options.seconds, help="length of each load case")
    parser.add_argument("--demo", type=Path, default=Options.demo, help="output folder of the demo to serve")
    parser.add_argument(
        "--thorough", action="store_true", help="finer rate searches with more and longer windows: hours"
    )
    add_run_options(parser)
    asked = parser.parse_args()
    names = list(known) if not asked.groups or "all" in asked.groups else list(dict.fromkeys(asked.groups))
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"no such group: {', '.join(unknown)}; there are: {', '.join(known)}, all")

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
        sys.stderr.write(f"error: failed, what they had measured is kept: {', '.join(failed)}\n")
    return 1 if failed else 0


def measure(group: Group, path: Path, options: Options, position: str = "") -> bool:
    """Append a group's figures to a file; return whether the group finished."""
    title(f"{group.name}: {group.about}" + (f" ({position})" if position else ""))
    if group.peers and not PEERS_PYTHON.exists():
        sys.stderr.write("error: the peers are not installed; `make bench-peers` does it\n")
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
    """Return the exit code; end the whole process group of a group that takes too long or is interrupted."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        return process.wait(LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"error: no end after {LONGEST_SECONDS / 60:.0f} minutes\n")
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
