"""Removing old versions of an external list from a registry.

A version stays while an alias points to it, while a server reports it as the version in use, and while it is
one of the newest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scorer.errors import RegistryError
from scorer.registry.base import RegistryBackend
from scorer.registry.lists import ListVersion, alias_of, published, read_version
from scorer.registry.pushing import LIST_KIND

_UNFINISHED_MS = 3_600_000
"""Age below which a version that was never in use stays: its publication may not have ended."""


@dataclass(frozen=True, slots=True)
class KeptListVersion:
    """A version that stays, with the reasons."""

    version: ListVersion
    reasons: tuple[str, ...]
    """Such as "newest", the names of aliases, or the addresses of servers."""


@dataclass(frozen=True, slots=True)
class ListPruning:
    """The versions of a list that are removed and those that stay, newest first."""

    removed: tuple[ListVersion, ...]
    kept: tuple[KeptListVersion, ...]

    @property
    def bytes(self) -> int:
        """Size of the files of the removed versions, in bytes."""
        return sum(one.bytes for one in self.removed)


def plan_pruning(
    registry: RegistryBackend,
    name: str,
    keep: int,
    in_use: Mapping[str, Sequence[str]],
    *,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> ListPruning:
    """Determine which versions of a list can be removed. Nothing is changed.

    Args:
        registry: The registry.
        name: Name of the list.
        keep: Number of the newest versions that stay, at least 1.
        in_use: By digest, the servers that report the version as the one in use.
        now_ms: Returns the time in milliseconds since the Unix epoch.

    Raises:
        RegistryError: `keep` is below 1.
        UnknownReferenceError: No version was published.
        RegistryUnavailableError: The registry cannot be read.
    """
    if keep < 1:
        raise RegistryError(f"keep is {keep}; at least the newest version of a list stays, so use 1 or more")
    used = published(registry, name)
    numbered = {one.digest: one for one in used}
    records = [one for one in registry.list(name) if one.kind == LIST_KIND]
    for record in records:
        if record.digest not in numbered:
            numbered[record.digest] = read_version(registry.show(record.digest).manifest)
    newest = {one.digest for one in sorted(used, key=lambda one: one.version, reverse=True)[:keep]}
    was_used = {one.digest for one in used}
    removed, kept = [], []
    for record in sorted(records, key=lambda one: numbered[one.digest].version, reverse=True):
        reasons = [
            *(["newest"] if record.digest in newest else []),
            *(f"alias {alias}" for alias in record.aliases if alias != alias_of(name)),
            *(f"in use at {server}" for server in in_use.get(record.digest, ())),
        ]
        if record.digest not in was_used and now_ms() - record.pushed_at_ms < _UNFINISHED_MS:
            reasons.append("published within the last hour and not in use yet")
        version = numbered[record.digest]
        if reasons or record.aliases:
            kept.append(KeptListVersion(version, tuple(reasons) or (f"alias {alias_of(name)}",)))
        else:
            removed.append(version)
    return ListPruning(tuple(removed), tuple(kept))


def prune(registry: RegistryBackend, pruning: ListPruning) -> None:
    """Remove the versions that a plan names. The registry checks again that no alias points to them.

    Raises:
        RegistryError: An alias was moved to one of them after the plan was made. Those before it are removed.
        RegistryUnavailableError: The registry cannot be written.
    """
    for version in reversed(pruning.removed):
        registry.remove_list(version.digest)
