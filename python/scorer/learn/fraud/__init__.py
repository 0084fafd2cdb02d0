"""Training, evaluation, tuning and comparison of score checkpoints on labelled decisions."""
