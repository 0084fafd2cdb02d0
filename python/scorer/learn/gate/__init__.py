"""The gate: whether a candidate bundle replaces the live one, takes a share of the traffic, or waits."""
