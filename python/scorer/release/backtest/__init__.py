"""The backtest: comparison of a candidate with the live bundle on logged decisions with known outcomes.

job         the job, its progress and its result, as JSON files
layout      conversion of logged rows to the order of a bundle's features
rows        reading logs into rows: scores of both bundles, labels, segments
actions     the same for action bundles: weights and doubly robust terms
ruling      the rules of both bundles: changed decisions, by rule
measures    metrics of both bundles with paired intervals
judge       evaluation of a backtest's gates
child       the process of a backtest
running     starting, checking and ending these processes
"""
