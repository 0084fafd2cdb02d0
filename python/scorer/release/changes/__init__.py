"""Change requests: the only way to change what a live checkpoint does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scorer.release.answers import ChangeDetail, Draft, Step

if TYPE_CHECKING:
    from scorer.release.changes.operations import Changes
    from scorer.release.changes.runner import Runner

__all__ = ["ChangeDetail", "Changes", "Draft", "Runner", "Step"]


def __getattr__(name: str) -> Any:
    """The classes are found when they are asked for: lanes and changes know parts of each other."""
    if name == "Changes":
        from scorer.release.changes.operations import Changes

        return Changes
    if name == "Runner":
        from scorer.release.changes.runner import Runner

        return Runner
    raise AttributeError(name)
