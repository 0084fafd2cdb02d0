"""Differences between two versions of a feature set."""

from __future__ import annotations

from dataclasses import dataclass

from scorer.features.canonical import feature_digest, set_digest
from scorer.features.declaration import FeatureSet


@dataclass(frozen=True)
class SetChanges:
    """Names of features by what differs, in the order of the declarations."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    redefined: tuple[str, ...]
    """Features of the same name whose values have another definition."""
    same_version: bool
    """Whether both sets have one name and version and different content."""

    @property
    def problem(self) -> str | None:
        """Why the new set cannot be released; None if it can."""
        if not self.same_version:
            return None
        return "the content differs and the version is the same; raise version in the new file"


def changes(old: FeatureSet, new: FeatureSet) -> SetChanges:
    """Compare two versions of a feature set."""
    before = {feature.name: feature_digest(old, feature.name) for feature in old.features}
    after = {feature.name: feature_digest(new, feature.name) for feature in new.features}
    return SetChanges(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        redefined=tuple(name for name in after if name in before and before[name] != after[name]),
        same_version=old.name == new.name
        and new.version <= old.version
        and set_digest(old) != set_digest(new),
    )
