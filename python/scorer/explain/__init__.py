"""Global explanations of bundles, and counterfactuals: the smallest change that gives another decision.

document        the result of a global explanation, one JSON document
sample          a bounded sample of a table's rows
quantity        the number that is explained: a margin, or the expected reward of an action
importance      mean absolute exact contributions, and what the forest's file states
dependence      partial dependence, individual curves and accumulated local effects
interactions    Friedman's H statistic of pairs of features
surrogate       a small decision tree that imitates the bundle, with its fidelity
running         all of these, in one run
thresholds      the values at which the tests of a forest change
counterfactual  the smallest change of actionable features that gives another decision
"""
