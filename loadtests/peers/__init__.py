"""Other servers, each in an environment of its own, serving the model that ours serves."""
