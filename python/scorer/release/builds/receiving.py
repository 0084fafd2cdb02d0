"""Receiving the files of a build, which are checked by name and first bytes, and copied within limits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from scorer.errors import BundleError
from scorer.release.builds import job
from scorer.release.errors import InvalidError

FIELDS = ("model", "table", "validation", "example")
"""Files of a build, by their field; the first two are required."""
_CHUNK = 1 << 20
_ARCHIVES = {
    b"PK\x03\x04": "zip archive",
    b"\x1f\x8b": "gzip archive",
    b"\x28\xb5\x2f\xfd": "zstd archive",
    b"BZh": "bzip2 archive",
    b"\xfd7zXZ": "xz archive",
}


@dataclass(frozen=True)
class Sent:
    """A file that a user has sent."""

    name: str
    """Name of the file on the user's machine."""
    content: BinaryIO


def receive(files: Mapping[str, Sent], folder: Path, *, limit: int) -> dict[str, dict[str, Any]]:
    """Copy the files of a build into its folder.

    Args:
        files: The files by field.
        folder: Folder of the build. Each file gets the name of its field and its extension.
        limit: Limit on the total size of all files in bytes.

    Returns:
        For each field, a mapping with `field`, `name`, `stored`, `bytes` and `sha256`.

    Raises:
        InvalidError: A file is missing, empty, too large, or has an extension that is not supported.
    """
    for field in FIELDS[:2]:
        if field not in files:
            raise InvalidError(f"{field}: the file is missing; choose one")
    kept: dict[str, dict[str, Any]] = {}
    left = limit
    for field in FIELDS:
        if field not in files:
            continue
        sent = files[field]
        try:
            ending = _ending(field, sent.name)
        except BundleError as error:
            raise InvalidError(str(error)) from None
        stored = folder / f"{field}{ending}"
        kept[field] = _copy(field, sent, stored, left, limit)
        left -= kept[field]["bytes"]
    return kept


def _ending(field: str, name: str) -> str:
    if field == "model":
        return job.ending_of_model(name)
    return ".json" if field == "example" else job.ending_of_table(name)


def _copy(field: str, sent: Sent, stored: Path, left: int, limit: int) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with stored.open("xb") as file:
        while chunk := sent.content.read(_CHUNK):
            if not size:
                _refuse_archives(field, sent.name, chunk)
            size += len(chunk)
            if size > left:
                raise InvalidError(
                    f"the files have more than {limit:,} bytes together, which is the limit (upload_mb); "
                    "send fewer rows, or ask an operator to raise the limit"
                )
            digest.update(chunk)
            file.write(chunk)
    if not size:
        raise InvalidError(f'{field}: "{sent.name[:100]}" is empty; choose another file')
    return {
        "field": field,
        "name": sent.name[:200],
        "stored": stored.name,
        "bytes": size,
        "sha256": f"sha256:{digest.hexdigest()}",
    }


def _refuse_archives(field: str, name: str, head: bytes) -> None:
    for start, kind in _ARCHIVES.items():
        if head.startswith(start):
            raise InvalidError(f'{field}: "{name[:100]}" is a {kind}; unpack it, and send the file inside')
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        raise InvalidError(
            f'{field}: "{name[:100]}" is a pickle, which can run code when it is read; save the model by its '
            "library, a scikit-learn model as a Treelite checkpoint"
        )
