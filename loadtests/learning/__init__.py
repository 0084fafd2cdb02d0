"""What learning is worth, beside its peers: `make bench-learning`."""
