"""Lanes compared on live traffic by their outcomes (docs/ab.md)."""
