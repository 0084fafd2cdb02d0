"""Versions of a checkpoint: every bundle that it ever had, over time and side by side."""

from __future__ import annotations

from scorer.release.versions.compare import Comparisons
from scorer.release.versions.listing import Versions

__all__ = ["Comparisons", "Versions"]
