"""The command line, one file per area; `scorer.cli` loads only the one that is asked for."""
