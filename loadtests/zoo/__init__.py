"""Candidates of known quality, and how many of them the gates stop or pass (`make bench-gates`)."""
