"""Segments: parts of the traffic, such as the payments of one country, that reports show one by one.

settings    the features that rows are split by, as a checkpoint's settings name them
split       rows of features into segments; the same for backtests, shadows and canaries
"""
