"""Versions of a checkpoint: all bundles that it has had, their history and their comparison."""

from __future__ import annotations

from scorer.release.versions.compare import Comparisons
from scorer.release.versions.listing import Versions

__all__ = ["Comparisons", "Versions"]
