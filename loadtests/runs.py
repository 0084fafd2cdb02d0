"""What every benchmark command does before it measures: common options, and the file of the run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loadtests.figures import RESULTS, Figures, NotReleaseError
from loadtests.provenance import DirtyTreeError, changed_files


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every benchmark command has."""
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the lines")
    parser.add_argument(
        "--allow-dirty",
        action="store_true",
        help="measure a tree with changes; the lines are marked and `make figures` refuses them",
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="run every part for a moment, to see that it works; the lines are marked likewise",
    )


def open_run(asked: argparse.Namespace, *, group: str = "") -> Figures:
    """Start the file of a run; end the process with an error where the run would be worth nothing."""
    unpublishable = None
    if asked.smoke:
        unpublishable = "smoke"
    elif asked.allow_dirty and changed_files():
        unpublishable = "dirty"
    try:
        return Figures(asked.results, group=group, unpublishable=unpublishable)
    except (NotReleaseError, DirtyTreeError) as error:
        sys.exit(f"error: {error}")
