"""Editing of a bundle's rules: checks, the author's cases, a test bench, and saving as a revision."""

from __future__ import annotations

from scorer.release.authoring.authoring import RuleAuthoring
from scorer.release.authoring.over_time import RuleHistories

__all__ = ["RuleAuthoring", "RuleHistories"]
