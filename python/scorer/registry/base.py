"""What the rest of the project expects of a registry: the seam for other engines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

Verifier = Callable[[Path], str]
"""Checks a bundle directory completely and returns its digest, ``sha256:<hex>``."""


class Resolved(NamedTuple):
    """What a reference stands for."""

    digest: str
    """``sha256:<hex>``."""
    path: Path | None
    """The bundle's directory, never to be written to; None where only `BundleSource.copy` brings it here."""
    changed_at_ms: int | None = None
    """When the alias was pointed here; None for a digest, or where the registry does not know."""


@dataclass(frozen=True, slots=True)
class AliasChange:
    """One entry of an alias's history. Entries are only ever added."""

    sequence: int
    alias: str
    """``name@alias``."""
    digest: str
    previous: str | None
    action: str
    """``alias`` or ``rollback``."""
    at_ms: int
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class BundleRecord:
    """One bundle in a registry."""

    digest: str
    name: str
    kind: str
    created_at: str
    pushed_at_ms: int
    pushed_by: str
    bytes: int
    aliases: tuple[str, ...]
    """Every ``name@alias`` that points here now."""


@dataclass(frozen=True, slots=True)
class BundleDetails:
    """A bundle with its manifest and the history of the aliases that ever pointed to it."""

    record: BundleRecord
    path: Path | str
    """Where it is, for people."""
    manifest: Mapping[str, Any]
    history: tuple[AliasChange, ...]


class BundleSource(Protocol):
    """What the server needs: where aliases point, and the bytes."""

    @property
    def location(self) -> str:
        """Where this registry is, for people."""

    def version(self, watched: Collection[str] = ()) -> Hashable:
        """Changes whenever an alias may have moved. Cheap: called at every poll.

        Args:
            watched: The aliases whose moves matter; a registry may include others.

        Raises:
            RegistryUnavailableError: The registry cannot be read now.
        """

    def resolve(self, reference: str) -> Resolved:
        """What ``name@alias``, a digest or a prefix of one stands for."""

    def copy(self, target: Resolved, destination: Path) -> None:
        """Fills an empty directory with a bundle's manifest and files, each synced to disk.

        The data plane verifies the copy; a source that fetches from afar checks every hash on the way.

        Raises:
            BundleError: What is stored is not a bundle that may be served.
            RegistryUnavailableError: It cannot be had now.
            OSError: The directory cannot be written.
        """

    def fingerprint(self, digest: str) -> Hashable:
        """Changes when the stored bytes of a bundle may have; for retrying one that was refused."""

    def close(self) -> None:
        """Releases what is held open."""


class RegistryBackend(BundleSource, Protocol):
    """Operations that every kind of registry supports."""

    def push(self, directory: Path, *, by: str | None = None) -> str:
        """Verifies a bundle, stores it and returns its digest. Idempotent."""

    def list(self, name: str | None = None) -> Sequence[BundleRecord]:
        """Every bundle, newest push first."""

    def show(self, reference: str) -> BundleDetails:
        """Return everything that is stored about one bundle."""

    def aliases(self) -> Mapping[str, str]:
        """Every ``name@alias`` and the digest it points to."""

    def history(self, alias: str | None = None) -> Sequence[AliasChange]:
        """Every change of an alias (or of all), oldest first."""

    def alias(
        self, name: str, alias: str, digest: str, *, by: str | None = None, reason: str = ""
    ) -> AliasChange | None:
        """Points ``name@alias`` to a bundle; None if it already did."""

    def rollback(self, name: str, alias: str, *, by: str | None = None, reason: str = "") -> AliasChange:
        """Points ``name@alias`` back to where it was before its current value was set."""
