"""The loop's steps, restartable, and when they run (docs/schedule.md).

`workspace` is where they work, `runner` does them, `generation` defines them, `jobs` has their
times. Importing the package loads nothing.
"""
