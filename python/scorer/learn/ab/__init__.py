"""A/B on a checkpoint by lanes: planned, read every day, taken back by itself on harm (docs/ab.md).

`plan` and `running` talk to the server, `readout` reads experience; importing the package loads nothing.
"""
