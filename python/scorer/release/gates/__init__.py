"""Gates: what a change must pass. Grammar, metrics, statistics, judgement; nothing here reads a log."""

from __future__ import annotations

from scorer.release.gates.defaults import default_gates
from scorer.release.gates.grammar import Gate, Gates, read, read_all

__all__ = ["Gate", "Gates", "default_gates", "read", "read_all"]
