"""From data to decisions on one machine: train, publish, serve, score, choose, swap; then learn and ship."""
