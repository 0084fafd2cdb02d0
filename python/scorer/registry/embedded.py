"""The embedded registry: a directory of content-addressed bundles and one SQLite file.

::

    <registry>/bundles/<hex>/...     immutable bundles; the directory's name is the digest
    <registry>/registry.sqlite       aliases with their complete history
    <registry>/staging/              unfinished pushes; deleted when they are older than a day
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scorer.errors import BundleError, RegistryError, RegistryUnavailableError
from scorer.ids import hex_of
from scorer.registry import files, pushing, rows
from scorer.registry.base import AliasChange, BundleDetails, BundleRecord, Resolved, Verifier
from scorer.registry.database import Database
from scorer.registry.reference import (
    AliasReference,
    DigestReference,
    check_expected,
    check_name,
    full_digest,
    parse_alias,
    parse_reference,
    pick_digest,
    unknown_alias,
)


class Registry:
    """A registry in a directory. Several processes may use it at once.

    Args:
        path: The directory; the first push creates it.
        verify: Replaces the complete check of a bundle, for tests.
        clock_ms: Returns the time in milliseconds since the Unix epoch.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        verify: Verifier | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.path = Path(path)
        self._verify = verify or pushing.verified
        self._clock_ms = clock_ms
        self._database = Database(self.path)
        self._watch: tuple[sqlite3.Connection, tuple[int, int, int, int]] | None = None

    @property
    def location(self) -> str:
        """Directory of the registry as a string."""
        return str(self.path)

    # --- bundles ---

    def push(self, directory: str | os.PathLike[str], *, by: str | None = None) -> str:
        """Verify a bundle, store it and return its digest, ``sha256:<hex>``.

        The copy is verified and not the original, so the stored bytes are the verified bytes. If the bundle
        is already stored, only its signature is updated; if the stored copy is damaged, it is replaced.

        Args:
            directory: The directory that `scorer bundle build` wrote.
            by: The user to record; default: the user of this process.

        Raises:
            BundleError: The directory does not hold a valid bundle.
            RegistryUnavailableError: The registry cannot be written.
        """
        source = Path(directory)
        manifest = files.read_manifest(source)
        check_name(str(manifest.get("name", "")), "bundle name")
        before = self._revised(manifest)
        try:
            try:
                digest, manifest = self._store(source, before)
            except BundleError:
                if before is None:
                    raise
                # The stored revision whose files were linked may be damaged; copy every file instead.
                digest, manifest = self._store(source, None)
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        with self._database.writing(create=True) as connection:
            self._index(connection, _hex(digest), manifest, by or pushing.user())
        return digest

    def _store(self, source: Path, before: Path | None) -> tuple[str, Mapping[str, Any]]:
        with files.staged(self._staging) as temporary:
            files.copy_bundle(source, temporary, before)
            digest = self._verify(temporary)
            manifest = files.read_manifest(temporary)
            target = self._bundles / _hex(digest)
            if target.exists() and not self._is_sound(target, digest):
                files.remove(target, staging=self._staging)
            if target.exists():
                files.replace_signature(temporary, target)
            files.commit(temporary, target)
        return digest, manifest

    def _revised(self, manifest: Mapping[str, Any]) -> Path | None:
        """Return the directory of the bundle that this manifest is a revision of, if it is stored here."""
        lineage = manifest.get("lineage")
        digest = lineage.get("revision_of") if isinstance(lineage, dict) else None
        hexadecimal = full_digest(str(digest))
        if hexadecimal is None:
            return None
        path = self._bundles / hexadecimal
        return path if (path / files.MANIFEST).is_file() else None

    def list(self, name: str | None = None, *, prefix: str = "") -> Sequence[BundleRecord]:
        """Return the bundles of one name, or all of them, newest push first."""
        with self._database.reading() as connection:
            return rows.records(connection, name=name, prefix=hex_of(prefix))

    def show(self, reference: str) -> BundleDetails:
        """Return one bundle with its manifest and the history of all aliases that have pointed to it."""
        digest = self.resolve(reference).digest
        with self._database.reading() as connection:
            (record,) = rows.records(connection, prefix=_hex(digest))
            history = rows.history(connection, digest=_hex(digest))
        path = self._bundles / _hex(digest)
        return BundleDetails(record, path, files.read_manifest(path), tuple(history))

    def remove_list(self, digest: str) -> None:
        """Remove a stored version of a list; see `RegistryBackend.remove_list`.

        The entry is changed first, so that no alias can be moved to the version, and its directory is deleted
        afterwards. A directory that an interrupted call has left is deleted by the next call.
        """
        with self._database.writing() as connection:
            hexadecimal = self._digest_of(connection, digest)
            (record,) = rows.records(connection, prefix=hexadecimal)
            pushing.check_removable(record)
            rows.remove_list(connection, hexadecimal)
            removed = rows.removed(connection)
        try:
            for directory in (self._bundles / one for one in removed):
                if directory.exists():
                    files.remove(directory, staging=self._staging)
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def reindex(self, *, by: str | None = None) -> Sequence[str]:
        """Verify and enter every stored bundle directory that the SQLite file does not list.

        Aliases are stored in the SQLite file only, so this does not restore them.

        Args:
            by: The user to record; default: the user of this process.

        Returns:
            The digests of the bundles that were entered.

        Raises:
            BundleError: A directory does not hold the bundle that its name states.
            RegistryUnavailableError: There is no directory of bundles, or the file cannot be written.
        """
        if not self._bundles.is_dir():
            raise RegistryUnavailableError(f'registry "{self.path}" has no bundles; check the path')
        with self._database.writing(create=True) as connection:
            known = rows.digests(connection)
        added = []
        for directory in sorted(self._bundles.iterdir()):
            if directory.name in known or full_digest(directory.name) is None:
                continue
            digest = self._verify(directory)
            if _hex(digest) != directory.name:
                raise BundleError(f'"{directory}" holds {digest}; remove it, or push the right bundle again')
            with self._database.writing() as connection:
                self._index(connection, directory.name, files.read_manifest(directory), by or pushing.user())
            added.append(digest)
        return added

    # --- aliases ---

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
            RegistryError: The bundle has another name.
            UnknownReferenceError: There is no such bundle.
        """
        reference = AliasReference(check_name(name, "bundle name"), check_name(alias, "alias"))
        with self._database.writing() as connection:
            target = self._digest_of(connection, digest)
            (bundle,) = rows.records(connection, prefix=target)
            if bundle.name != name:
                raise RegistryError(
                    f'bundle sha256:{target[:12]} is called "{bundle.name}", so "{reference}" cannot '
                    "point to it; "
                    f'use "{bundle.name}@{alias}"'
                )
            current = rows.current(connection).get(str(reference))
            check_expected(reference, current and f"sha256:{current}", expected)
            if current == target:
                return None
            return self._move(connection, reference, current, target, action="alias", by=by, reason=reason)

    def rollback(self, name: str, alias: str, *, by: str | None = None, reason: str = "") -> AliasChange:
        """Point ``name@alias`` to the bundle it pointed to before its current value was set.

        A second rollback goes one step further back. It does not return to the value that the first rollback
        replaced.

        Args:
            name: The bundle's name.
            alias: For example ``live``.
            by: The user to record; default: the user of this process.
            reason: The reason to record in the history.

        Raises:
            UnknownReferenceError: The alias does not exist.
            RegistryError: The alias has no earlier value.
        """
        reference = AliasReference(check_name(name, "bundle name"), check_name(alias, "alias"))
        with self._database.writing() as connection:
            changes = rows.history(connection, alias=reference)
            if not changes:
                raise unknown_alias(reference, rows.current(connection), self.location)
            earlier = rows.before_current(changes)
            if earlier is None:
                raise RegistryError(
                    f'"{reference}" has no earlier value to go back to; '
                    f"point it somewhere with `scorer registry alias {reference} DIGEST`"
                )
            if not rows.digests(connection, _hex(earlier)):
                raise RegistryError(
                    f'"{reference}" cannot go back: {earlier[:19]} was removed; publish its content again'
                )
            current = _hex(changes[-1].digest)
            return self._move(
                connection, reference, current, _hex(earlier), action="rollback", by=by, reason=reason
            )

    def aliases(self) -> Mapping[str, str]:
        """Return the digest that every ``name@alias`` points to."""
        with self._database.reading() as connection:
            return {name: f"sha256:{digest}" for name, digest in rows.current(connection).items()}

    def history(self, alias: str | None = None) -> Sequence[AliasChange]:
        """Return the changes of ``name@alias``, or of all aliases, oldest first."""
        reference = None if alias is None else parse_alias(alias)
        with self._database.reading() as connection:
            changes = rows.history(connection, alias=reference)
            if reference is not None and not changes:
                raise unknown_alias(reference, rows.current(connection), self.location)
            return changes

    def resolve(self, reference: str) -> Resolved:
        """Return the bundle that ``name@alias``, a digest or a prefix of a digest names."""
        parsed = parse_reference(reference)
        with self._database.reading() as connection:
            hexadecimal = self._digest_of(connection, reference)
            changed_at_ms = (
                rows.changed_at_ms(connection, parsed) if isinstance(parsed, AliasReference) else None
            )
        path = self._bundles / hexadecimal
        if not path.is_dir():
            raise RegistryUnavailableError(
                f'bundle sha256:{hexadecimal[:12]} is entered in "{self.path}" but its directory is gone; '
                "push it again"
            )
        return Resolved(f"sha256:{hexadecimal}", path, changed_at_ms)

    # --- watching ---

    def version(self, watched: Collection[str] = ()) -> Hashable:
        """Return a value that changes whenever a process has written the file.

        A call costs one ``stat`` and one ``PRAGMA`` on a connection that is kept open. `watched` has no
        effect: a move of any alias changes the value.
        """
        path = self._database.path
        try:
            status = path.stat()
        except OSError:
            self.close()
            raise self._database.missing() from None
        # Time and size are included because, on a read-only mount, an open connection does not detect changes
        # that are made elsewhere.
        identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
        if self._watch is not None and self._watch[1] != identity:
            # The file was replaced or written. The open connection could still refer to the old file.
            self.close()
        if self._watch is None:
            self._watch = (self._database.open_reader(), identity)
        try:
            data_version = self._watch[0].execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.DatabaseError as error:
            self.close()
            raise RegistryUnavailableError(f'"{path}" cannot be read: {error}') from error
        # `data_version` is comparable only within one connection, so the value includes the connection.
        return (identity, id(self._watch[0]), data_version)

    def copy(self, target: Resolved, destination: Path) -> None:
        """Copy the manifest, the files that it lists and the signature into an empty directory."""
        files.copy_bundle(self._bundles / _hex(target.digest), destination)

    def fingerprint(self, digest: str) -> Hashable:
        """Return the names, inodes, sizes and times of a bundle's stored files."""
        return files.stat_fingerprint(self._bundles / _hex(digest))

    def close(self) -> None:
        """Close the connection that `version` keeps open."""
        if self._watch is not None:
            self._watch[0].close()
            self._watch = None

    # --- inside ---

    @property
    def _bundles(self) -> Path:
        return self.path / "bundles"

    @property
    def _staging(self) -> Path:
        return self.path / "staging"

    def _is_sound(self, directory: Path, digest: str) -> bool:
        try:
            return self._verify(directory) == digest
        except BundleError:
            return False

    def _index(
        self, connection: sqlite3.Connection, hexadecimal: str, manifest: Mapping[str, Any], by: str
    ) -> None:
        rows.add_bundle(
            connection,
            {
                "digest": hexadecimal,
                "name": str(manifest["name"]),
                "kind": str(manifest.get("kind", "")),
                "created_at": str(manifest.get("created_at", "")),
                "pushed_at_ms": self._clock_ms(),
                "pushed_by": by,
                "bytes": files.size_of(self._bundles / hexadecimal),
            },
        )

    def _digest_of(self, connection: sqlite3.Connection, text: str) -> str:
        reference = parse_reference(text)
        if isinstance(reference, DigestReference):
            return pick_digest(reference, rows.digests(connection, reference.prefix), self.location)
        current = rows.current(connection)
        if str(reference) not in current:
            raise unknown_alias(reference, current, self.location)
        return current[str(reference)]

    def _move(
        self,
        connection: sqlite3.Connection,
        reference: AliasReference,
        previous: str | None,
        digest: str,
        *,
        action: str,
        by: str | None,
        reason: str,
    ) -> AliasChange:
        return rows.add_change(
            connection,
            {
                "name": reference.name,
                "alias": reference.alias,
                "digest": digest,
                "previous": previous,
                "action": action,
                "at_ms": self._clock_ms(),
                "by": by or pushing.user(),
                "reason": reason,
            },
        )


def _hex(digest: str) -> str:
    hexadecimal = full_digest(digest)
    if hexadecimal is None:
        raise BundleError(f'"{digest}" is not a digest; expected sha256: and 64 hex digits')
    return hexadecimal


def _cannot_write(path: Path, error: OSError) -> RegistryError:
    if isinstance(error, PermissionError) or error.strerror == "Read-only file system":
        return RegistryUnavailableError(f'registry "{path}" is read-only; change it where it may be written')
    return RegistryUnavailableError(f'registry "{path}" cannot be written: {error.strerror or error}')
