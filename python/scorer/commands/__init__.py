"""The command line, one module per area. `scorer.cli` imports only the module of the requested command."""
