"""The whole learning loop in one process, on simulated payments."""
