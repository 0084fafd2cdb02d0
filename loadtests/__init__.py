"""Measurements: what is fast, beside whom, and how it was found out. `make bench` runs them all."""
