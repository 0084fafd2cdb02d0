"""Candidates whose worth is known, and how many of them the gates stop or pass (`make bench-gates`)."""
