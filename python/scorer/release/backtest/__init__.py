"""The backtest: a candidate beside the live bundle on decisions of the log whose outcomes are known.

job         what is to be computed, how far it is, and what came of it, as JSON
layout      features of logged rows in the order of a bundle
rows        logs into rows: both bundles' scores, labels, segments
actions     the same for action bundles: weights and doubly robust terms
measures    metrics of both sides with paired intervals
judge       gates of a backtest
child       the process that does it
running     starts, watches and ends these processes
"""
