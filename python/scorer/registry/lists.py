"""External lists in a registry: versions of named lists that rules of bundles read.

A version is stored, signed and fetched like a bundle: a directory with a manifest of kind ``list`` and the
file of the elements, named by its digest. The alias ``NAME@list`` points to the newest version. The version
is stored completely before the alias moves, so an interrupted publication leaves the version before it in
use.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from scorer.bundle.lists import ELEMENTS
from scorer.durable import sync_directory
from scorer.errors import BundleError, RegistryError, UnknownReferenceError
from scorer.registry import files
from scorer.registry.base import BundleSource, RegistryBackend
from scorer.registry.embedded import Registry
from scorer.registry.pushing import LIST_KIND
from scorer.registry.reference import check_name

ALIAS = "list"
"""The alias that points to the newest version of a list."""
_ZERO = "0" * 64
_SHOWN = 10
_SHRINKS = 2
"""A version has at least one element for this many of the version before it, unless that was confirmed."""


@dataclass(frozen=True, slots=True)
class ListVersion:
    """One version of an external list."""

    name: str
    type: Literal["string", "int"]
    """The type of the elements."""
    version: int
    digest: str
    """``sha256:<hex>``."""
    elements: int
    """Number of elements, duplicates included."""
    bytes: int
    """Size of the file of the elements."""
    sha256: str
    """SHA-256 of the file of the elements, ``sha256:<hex>``."""
    published_at_ms: int
    shrinks: bool
    """Whether the publisher confirmed that the list has far fewer elements than before."""


def alias_of(name: str) -> str:
    """Return the alias that points to the newest version of a list."""
    return f"{check_name(name, 'list')}@{ALIAS}"


def read_version(manifest: Any) -> ListVersion:
    """Return what the manifest of a version states.

    Raises:
        BundleError: It is not the manifest of a list.
    """
    try:
        if manifest["kind"] != LIST_KIND:
            raise BundleError(f'"{manifest["name"]}" is a bundle of kind {manifest["kind"]} and not a list')
        content, entry = manifest["list"], manifest["files"][ELEMENTS]
        return ListVersion(
            str(manifest["name"]),
            "int" if content["type"] == "int" else "string",
            int(content["version"]),
            str(manifest["digest"]),
            int(content["elements"]),
            int(entry["bytes"]),
            str(entry["sha256"]),
            int(content["published_at_ms"]),
            bool(content.get("shrinks", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError(
            f"the manifest of the list is damaged ({error!r}); publish the list again"
        ) from None


def newest(registry: RegistryBackend, name: str) -> ListVersion | None:
    """Return the newest version of a list, or None if none was published.

    Raises:
        RegistryUnavailableError: The registry cannot be read.
    """
    reference = alias_of(name)
    if isinstance(registry, Registry) and not registry.path.exists():
        return None  # the first publication creates it
    if reference not in registry.aliases():
        return None
    return read_version(registry.show(reference).manifest)


def published(registry: RegistryBackend, name: str) -> Sequence[ListVersion]:
    """Return the versions of a list that have been in use and are stored, newest first.

    Raises:
        UnknownReferenceError: No version was published, or none is stored any longer.
        RegistryUnavailableError: The registry cannot be read.
    """
    digests = dict.fromkeys(change.digest for change in reversed(registry.history(alias_of(name))))
    found = []
    for digest in digests:
        with suppress(UnknownReferenceError):  # it was removed
            found.append(read_version(registry.show(digest).manifest))
    if not found:
        raise UnknownReferenceError(
            f'the registry has no version of list "{name}" any longer; publish one with `scorer lists put`'
        )
    return found


def names(registry: RegistryBackend) -> list[str]:
    """Return the names of all lists that have been published."""
    suffix = f"@{ALIAS}"
    return sorted(name.removesuffix(suffix) for name in registry.aliases() if name.endswith(suffix))


def put(
    registry: RegistryBackend,
    name: str,
    file: Path,
    *,
    kind: Literal["string", "int"] | None = None,
    allow_shrink: bool = False,
    keys: Sequence[str] = (),
    by: str | None = None,
    reason: str = "",
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> tuple[ListVersion, ListVersion | None]:
    """Publish the content of a file as the next version of a list.

    The same content as that of the newest version is not published again.

    Args:
        registry: The registry.
        name: Name of the list, as in ``list("name")``.
        file: The elements, one per line.
        kind: Type of the elements; None: that of the version before, or strings.
        allow_shrink: Whether the version may have fewer than half of the elements of the one before it.
        keys: Files of private keys that sign the version.
        by: The user to record; default: the user of this process.
        reason: The reason to record in the history.
        now_ms: Returns the time in milliseconds since the Unix epoch.

    Returns:
        The newest version, and the one that was the newest before.

    Raises:
        BundleError: The file is not a list of that type, or is implausible.
        SignatureError: A key cannot be used.
        AliasMovedError: Another process has published a version meanwhile.
        RegistryUnavailableError: The registry cannot be written.
    """
    before = newest(registry, name)
    wanted = kind or (before.type if before else "string")
    if before and before.type != wanted:
        raise BundleError(
            f'list "{name}" has elements of type {before.type}, and {wanted} was given; publish it under '
            "another name"
        )
    with tempfile.TemporaryDirectory(prefix="scorer-list-") as made:
        directory = Path(made)
        elements, size, sha256 = _copy(file, directory / ELEMENTS)
        if before and before.sha256 == sha256:
            return before, before
        _check_size(name, elements, before, allow_shrink)
        at_ms = now_ms()
        version = ListVersion(
            name, wanted, before.version + 1 if before else 1, "", elements, size, sha256, at_ms, allow_shrink
        )
        digest = write_manifest(directory, version)
        if keys:
            from scorer.bundle.signing import sign_digest

            sign_digest(directory, name, digest, keys, release=version.version)
        sync_directory(directory)
        registry.push(directory, by=by)
        expected = before.digest if before else ""
        registry.alias(name, ALIAS, digest, by=by, reason=reason, expected=expected)
        return read_version(files.read_manifest(directory)), before


def find_version(registry: RegistryBackend, name: str, version: int) -> ListVersion:
    """Return a version of a list by its number.

    Raises:
        UnknownReferenceError: It was never in use, or was removed.
    """
    versions = published(registry, name)
    for one in versions:
        if one.version == version:
            return one
    shown = ", ".join(str(one.version) for one in versions[:_SHOWN])
    more = f" and {len(versions) - _SHOWN} older ones" if len(versions) > _SHOWN else ""
    raise UnknownReferenceError(
        f'the registry has no version {version} of list "{name}"; it has {shown}{more}'
    )


def fetch(registry: BundleSource, digest: str, directory: Path) -> Path:
    """Copy a version into an empty directory, and return the file of its elements."""
    registry.copy(registry.resolve(digest), directory)
    return directory / ELEMENTS


def _check_size(name: str, elements: int, before: ListVersion | None, allow_shrink: bool) -> None:
    if allow_shrink:
        return
    if elements == 0:
        raise BundleError(
            f'list "{name}": the file has no elements; correct the file, or confirm it with --allow-shrink'
        )
    if before and elements * _SHRINKS < before.elements:
        raise BundleError(
            f'list "{name}": the file has {elements} elements, fewer than half of the {before.elements} of '
            f"version {before.version}; correct the file, or confirm it with --allow-shrink"
        )


def _copy(source: Path, target: Path) -> tuple[int, int, str]:
    """Copy the file of the elements. Return the number of elements, the size and the SHA-256."""
    elements, size, digest = 0, 0, hashlib.sha256()
    try:
        with source.open("rb") as reader, target.open("xb") as writer:
            for line in reader:
                size += len(line)
                if size > files.MAX_FILE_BYTES:
                    raise BundleError(
                        f'"{source}" has more than {files.MAX_FILE_BYTES} bytes; split the list into several'
                    )
                elements += bool(line.removesuffix(b"\n").removesuffix(b"\r"))
                digest.update(line)
                writer.write(line)
    except OSError as error:
        raise BundleError(f'"{error.filename or source}" cannot be copied: {error.strerror}') from None
    return elements, size, f"sha256:{digest.hexdigest()}"


def write_manifest(directory: Path, version: ListVersion) -> str:
    """Write the manifest of a version beside its elements.

    Args:
        directory: Directory of the version, which contains the elements.
        version: What the manifest states. Its digest is not used.

    Returns:
        The digest of the version, ``sha256:<hex>``.
    """
    created = datetime.fromtimestamp(version.published_at_ms / 1000, UTC)
    manifest = {
        "format": 1,
        "digest": f"sha256:{_ZERO}",
        "name": version.name,
        "kind": LIST_KIND,
        "created_at": created.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "list": {
            "type": version.type,
            "version": version.version,
            "elements": version.elements,
            "published_at_ms": version.published_at_ms,
            "shrinks": version.shrinks,
        },
        "files": {ELEMENTS: {"sha256": version.sha256, "bytes": version.bytes}},
    }
    blank = json.dumps(manifest, indent=1) + "\n"
    if blank.count(_ZERO) != 1:
        raise RegistryError("the manifest has 64 zeros outside its digest; change the file of the list")
    digits = hashlib.sha256(blank.encode()).hexdigest()
    (directory / files.MANIFEST).write_text(blank.replace(_ZERO, digits))
    return f"sha256:{digits}"
