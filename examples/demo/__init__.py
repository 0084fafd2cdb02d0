"""The demo on one machine: train, publish, serve, score, select actions, swap; then learn and release."""
