"""Our exploration rules and those of peers, and the tasks that compare them (docs/exploration.md)."""
