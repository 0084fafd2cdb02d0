"""Gates, the conditions that a change must pass: their grammar, metrics and evaluation.

No module of this package reads a log.
"""

from __future__ import annotations

from scorer.release.gates.defaults import default_gates
from scorer.release.gates.grammar import Gate, Gates, read, read_all

__all__ = ["Gate", "Gates", "default_gates", "read", "read_all"]
