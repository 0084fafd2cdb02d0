"""A generation of the action oracle and its policy, from experience."""
