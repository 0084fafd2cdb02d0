"""The control of a fleet: how soon lane tables reach many servers, and what it costs."""
