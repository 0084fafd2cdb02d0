"""Benchmarks of learning in comparison with its peers: `make bench-learning`."""
