"""The source of decisions and outcomes: one interface, and where they are read from."""
