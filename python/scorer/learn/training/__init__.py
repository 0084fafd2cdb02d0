"""A generation of the action oracle and its policy, trained on experience."""
