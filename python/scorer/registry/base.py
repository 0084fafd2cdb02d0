"""The interface of a registry, which every engine implements, and its data types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

Verifier = Callable[[Path], str]
"""Checks a bundle directory completely and returns its digest, ``sha256:<hex>``."""


class Resolved(NamedTuple):
    """The bundle that a reference names."""

    digest: str
    """``sha256:<hex>``."""
    path: Path | None
    """The bundle's directory, which must not be written to; None if the bundle has to be fetched with
    `BundleSource.copy`."""
    changed_at_ms: int | None = None
    """When the alias was set to this bundle, in milliseconds since the Unix epoch. None for a digest, and if
    the registry has no record of the change."""


@dataclass(frozen=True, slots=True)
class AliasChange:
    """One entry of an alias's history. Entries are never changed or deleted."""

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
    """Every ``name@alias`` that points to this bundle now."""


@dataclass(frozen=True, slots=True)
class BundleDetails:
    """A bundle with its manifest and the history of all aliases that have pointed to it."""

    record: BundleRecord
    path: Path | str
    """The bundle's directory, or a description of its location for display."""
    manifest: Mapping[str, Any]
    history: tuple[AliasChange, ...]


class BundleSource(Protocol):
    """The part of a registry that the server uses: resolving references and fetching files."""

    @property
    def location(self) -> str:
        """Location of the registry, for display and for messages."""

    def version(self, watched: Collection[str] = ()) -> Hashable:
        """Return a value that changes whenever an alias may have moved.

        The server calls this at every poll, so it must be cheap.

        Args:
            watched: The aliases (``name@alias``) whose moves must change the value. Moves of other aliases
                may change it too.

        Raises:
            RegistryUnavailableError: The registry cannot be read now.
        """

    def resolve(self, reference: str) -> Resolved:
        """Return the bundle that ``name@alias``, a digest or a prefix of a digest names.

        Raises:
            InvalidReferenceError: The text has none of the three forms.
            UnknownReferenceError: There is no such alias or bundle.
            AmbiguousReferenceError: Several digests begin with the prefix.
            RegistryUnavailableError: The registry cannot be read now.
        """

    def copy(self, target: Resolved, destination: Path) -> None:
        """Fill an empty directory with a bundle's manifest and files, each synced to disk.

        The data plane verifies the copy. A source that fetches over the network also checks the SHA-256 of
        every file as it arrives.

        Args:
            target: The bundle, as `resolve` returned it.
            destination: An existing, empty directory.

        Raises:
            BundleError: The stored files are not a bundle that may be served.
            RegistryUnavailableError: The bundle cannot be read now.
            OSError: The directory cannot be written.
        """

    def fingerprint(self, digest: str) -> Hashable:
        """Return a value that changes when the stored bytes of a bundle may have changed.

        The server compares it before it tries again to load a bundle that it rejected.
        """

    def close(self) -> None:
        """Release open files and connections."""


class RegistryBackend(BundleSource, Protocol):
    """Operations that every kind of registry supports."""

    def push(self, directory: Path, *, by: str | None = None) -> str:
        """Verify a bundle and store it. Pushing the same bundle again has no further effect.

        Args:
            directory: The directory that `scorer bundle build` wrote.
            by: The user to record; default: the user of this process.

        Returns:
            The bundle's digest, ``sha256:<hex>``.

        Raises:
            BundleError: The directory does not hold a valid bundle.
            RegistryUnavailableError: The registry cannot be written now.
        """

    def list(self, name: str | None = None, *, prefix: str = "") -> Sequence[BundleRecord]:
        """Return the bundles of one name, or all of them, newest push first.

        Args:
            name: Return only bundles of this name.
            prefix: Return only bundles whose digest begins with this text, with or without ``sha256:``.
        """

    def remove_list(self, digest: str) -> None:
        """Remove a stored version of a list. The history of aliases still names its digest.

        Args:
            digest: ``sha256:<hex>``.

        Raises:
            UnknownReferenceError: There is no such version.
            RegistryError: It is a bundle, or an alias points to it.
            RegistryUnavailableError: The registry cannot be written now.
        """

    def show(self, reference: str) -> BundleDetails:
        """Return everything that is stored about one bundle."""

    def aliases(self) -> Mapping[str, str]:
        """Return the digest that every ``name@alias`` points to."""

    def history(self, alias: str | None = None) -> Sequence[AliasChange]:
        """Return the changes of one alias (``name@alias``), or of all, oldest first."""

    def alias(
        self,
        name: str,
        alias: str,
        digest: str,
        *,
        by: str | None = None,
        reason: str = "",
        expected: str | None = None,
    ) -> AliasChange | None:
        """Point ``name@alias`` to a bundle.

        Args:
            name: The bundle's name, as in its manifest.
            alias: For example ``live``.
            digest: A digest, a prefix of a digest, or another ``name@alias``.
            by: The user to record; default: the user of this process.
            reason: The reason to record in the history.
            expected: The digest that the alias must point to until now; empty: it must not exist; None: any.

        Returns:
            The new entry of the history, or None if the alias already pointed to this bundle.

        Raises:
            AliasMovedError: The alias points to another bundle than the expected one.
        """

    def rollback(self, name: str, alias: str, *, by: str | None = None, reason: str = "") -> AliasChange:
        """Point ``name@alias`` to the bundle it pointed to before its current value was set.

        Args:
            name: The bundle's name.
            alias: For example ``live``.
            by: The user to record; default: the user of this process.
            reason: The reason to record in the history.

        Raises:
            UnknownReferenceError: The alias does not exist.
            RegistryError: The alias has no earlier value.
        """
