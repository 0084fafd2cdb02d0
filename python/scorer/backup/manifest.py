"""The manifest of a backup: its parts, and size and SHA-256 of every file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from scorer.errors import BackupError

FILE = "backup.json"
PartName = Literal["registry", "log", "platform"]


class StoredFile(BaseModel):
    """Size of a file in bytes, and the SHA-256 of its content in hexadecimal digits."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int
    sha256: str


class BackupPart(BaseModel):
    """A registry, a log or a platform.

    Attributes:
        source: Absolute path of the directory or database that was backed up.
        files: Size and SHA-256 of every file, by its path within the part.
        facts: Facts for display, such as the number of bundles.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    files: Mapping[str, StoredFile]
    facts: Mapping[str, Any]


class BackupManifest(BaseModel):
    """The content of `backup.json`.

    Attributes:
        version: Version of this layout.
        created_at: Time of the backup, ISO 8601 in UTC.
        scorer: Version of scorer that created the backup.
        parts: The parts by name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1]
    created_at: str
    scorer: str
    parts: Mapping[PartName, BackupPart]

    @property
    def bytes(self) -> int:
        """Total size of the files of all parts in bytes, without the manifest."""
        return sum(file.bytes for part in self.parts.values() for file in part.files.values())


def read_manifest(directory: Path) -> BackupManifest:
    """Read `backup.json` and check that every file in it lies within its part.

    Args:
        directory: The backup's directory.

    Raises:
        BackupError: The file is missing, cannot be read or is not valid.
    """
    path = directory / FILE
    try:
        manifest = BackupManifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise BackupError(
            f'"{directory}" is no complete backup: it holds no {FILE}; give the directory that '
            "`scorer backup` wrote"
        ) from None
    except OSError as error:
        raise BackupError(f'"{path}" cannot be read: {error.strerror}') from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise BackupError(f'"{path}": {where}: {first["msg"]}; make the backup again') from None
    for name, part in manifest.parts.items():
        for file in part.files:
            if file.startswith("/") or ".." in Path(file).parts:
                raise BackupError(f'"{path}": "{file}" lies outside of {name}; make the backup again')
    return manifest


def digest(path: Path) -> StoredFile:
    """Return the size of a file and the SHA-256 of its content."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        return StoredFile(bytes=file.tell(), sha256=found)


def check_part(directory: Path, name: str, part: BackupPart) -> None:
    """Compare every file of a part with the manifest.

    Args:
        directory: The backup's directory.
        name: Name of the part.
        part: The part's entry in the manifest.

    Raises:
        BackupError: A file is missing, truncated or altered.
    """
    for file, expected in part.files.items():
        path = directory / name / file
        try:
            found = digest(path)
        except OSError as error:
            raise BackupError(
                f'backup file "{path}" cannot be read: {error.strerror}; use another backup'
            ) from None
        if found != expected:
            raise BackupError(f'backup file "{path}" is altered: its SHA-256 differs; use another backup')


def dump(manifest: BackupManifest) -> bytes:
    """Return the content of `backup.json`."""
    return (json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True) + "\n").encode()
