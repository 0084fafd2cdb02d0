"""Versions of a checkpoint compared over time: metrics per week of matured labels.

settings    what is compared, the cost matrix, and the limits
versions    the bundles with their data set, algorithm and parameters
weeks       weeks of decisions, and whether their labels have matured
rows        the arrays that both kinds of checkpoints are reduced to
scores      rows of a score checkpoint: labels by the label policy, scores of every version
actions     rows of an action checkpoint: the join, and doubly robust terms of every version
measures    metrics of one version on some rows, with the replicates of the bootstrap by day
comparing   weeks, totals, paired differences and the best version of each week
results     the comparison as plain values, JSON and tables
running     one comparison from logs to its result
figures     the charts, as Plotly figures with their numbers
page        the comparison as one HTML page
"""
