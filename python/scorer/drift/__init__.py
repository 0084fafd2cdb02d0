"""Drift of a checkpoint's features, scores, decisions and outcomes, found in the records of its logs.

shift        distances of binned counts, and tests of rates
detection    which quantities have shifted at a look, over windows of several lengths
trigger      k of m looks, and alerts with a cool-down
performance  AUC and calibration of binned scores, measured and estimated before outcomes
slices       the segment whose figures differ most, among a bounded number
"""
