"""Change requests, the only way to change what a managed checkpoint does."""

from __future__ import annotations

from scorer.release.answers import ChangeDetail, Draft, Step
from scorer.release.changes.discussion import comments
from scorer.release.changes.drafts import EDITS
from scorer.release.changes.operations import Changes
from scorer.release.changes.runner import Runner

__all__ = ["EDITS", "ChangeDetail", "Changes", "Draft", "Runner", "Step", "comments"]
