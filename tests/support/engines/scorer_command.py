"""Runs the command line in the environment of an engine: scorer_command.py ARGUMENTS."""

from __future__ import annotations

from scorer.cli import main

if __name__ == "__main__":
    main()
