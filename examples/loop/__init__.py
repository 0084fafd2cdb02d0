"""The whole loop in one process, on simulated payments: decide, wait, learn, decide better."""
