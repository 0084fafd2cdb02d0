"""Generated from protos/scorer/v1 by `make proto`; never edited."""
