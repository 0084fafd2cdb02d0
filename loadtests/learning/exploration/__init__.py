"""Exploration rules, the peers' beside ours, and what they are judged on (docs/exploration.md)."""
