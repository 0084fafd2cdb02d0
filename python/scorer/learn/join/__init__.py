"""Decisions of one checkpoint with what became of them: from the log to experience."""
