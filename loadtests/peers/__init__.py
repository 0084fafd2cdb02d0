"""Other servers, each in its own environment, which serve the same model as ours."""
