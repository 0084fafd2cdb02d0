"""The loop's steps, restartable, and when they run (docs/schedule.md).

`workspace` is where they work, `runner` does them, `generation` says what they are, `scheduler`
when. Importing the package loads nothing.
"""
