"""The start of every benchmark command: common options and the file of the run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loadtests.figures import RESULTS, Figures, NotReleaseError
from loadtests.provenance import DirtyTreeError, changed_files


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every benchmark command has."""
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the measured lines")
    parser.add_argument(
        "--allow-dirty",
        action="store_true",
        help="measure a working tree with changes; `make figures` refuses the lines, marked `dirty`",
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="run every part briefly to check that it works; `make figures` refuses the lines",
    )


def open_run(asked: argparse.Namespace, *, group: str = "") -> Figures:
    """Start the file of a run, or end the process with an error if its figures could not be used."""
    unpublishable = None
    if asked.smoke:
        unpublishable = "smoke"
    elif asked.allow_dirty and changed_files():
        unpublishable = "dirty"
    try:
        return Figures(asked.results, group=group, unpublishable=unpublishable)
    except (NotReleaseError, DirtyTreeError) as error:
        sys.exit(f"error: {error}")
