"""Import of outcomes from files: reading, checks against logs, and reports to servers that can be resumed."""
