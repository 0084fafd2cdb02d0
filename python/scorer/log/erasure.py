"""Erasure of an entity: readers of a log skip the records of erased entities.

Segments are never rewritten, because their checksums and sequences are evidence. An erasure is a line in the
file `ERASED` of the log's directory, a salted hash of the entity. `scan`, and therefore exports, joins,
reports and the platform's pages, skip the entity's decisions with their observations and outcomes. Retention
later removes the bytes with their segments.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Set as AbstractSet
from os import PathLike
from pathlib import Path
from typing import Any

from scorer import bridge
from scorer.durable import write_atomically
from scorer.errors import LogError

FILE = "ERASED"


class Erased:
    """The erased entities of a log, and the decisions of these entities that were read so far.

    Args:
        salt: Salt of the hashes.
        hashes: Hashes of the erased entities, as `fingerprint` returns them.
    """

    def __init__(self, salt: str, hashes: AbstractSet[str]) -> None:
        self.salt, self.hashes = salt, hashes
        self._decisions: set[tuple[str, str]] = set()

    def __bool__(self) -> bool:
        return bool(self.hashes)

    @property
    def version(self) -> str:
        """A value that changes with each erasure. Data derived under another value must be derived again."""
        return hashlib.sha256("".join(sorted(self.hashes)).encode()).hexdigest()[:16] if self.hashes else ""

    def names(self, entity: str) -> bool:
        """Return whether an entity, in the form in which it is recorded, is erased."""
        return bool(entity) and fingerprint(self.salt, entity) in self.hashes

    def covers(self, kind: str, record: Any) -> bool:
        """Return whether a record belongs to an erased entity.

        Records must be passed in the order of the log: outcomes do not contain the entity, so they are
        recognised by their decision, which precedes them.

        Args:
            kind: Kind of the record, as in `scorer.log.Entry`.
            record: The record.
        """
        if kind == "outcome":
            return (record.checkpoint, record.decision_id) in self._decisions
        decision = record.decision if kind == "observation" else record
        if kind not in {"decision", "observation"} or not self.names(decision.entity):
            return False
        self._decisions.add((decision.checkpoint, decision.decision_id))
        return True


def fingerprint(salt: str, entity: str) -> str:
    """Return the hash of an entity for the file: SHA-256 of the file's salt and the entity as recorded."""
    return hashlib.sha256(f"{salt}\0{entity}".encode()).hexdigest()


def pseudonym(key_file: Path, entity: str) -> str:
    """Return an entity in the form in which a server with `[privacy] entities = "hash"` records it.

    Args:
        key_file: File of the server's key.
        entity: The entity, as requests contain it.

    Raises:
        LogError: The key cannot be read, is too short or too long, or other users can read it.
    """
    return bridge.entity_pseudonym(key_file, entity)


def erased(directory: str | PathLike[str]) -> Erased:
    """Read a log's erasures.

    Raises:
        LogError: The file exists but cannot be read. Without it, erased records would be returned again.
    """
    try:
        salt, *hashes = (Path(directory) / FILE).read_text(encoding="ascii").split()
    except (FileNotFoundError, NotADirectoryError):
        return Erased("", frozenset())
    except (OSError, ValueError) as error:
        raise LogError(
            f'the erasures of log "{directory}" cannot be read ({error}); restore the file {FILE}'
        ) from None
    return Erased(salt, frozenset(hashes))


def erase(directory: Path, entity: str) -> bool:
    """Erase an entity: later reads of the log skip its records.

    Args:
        directory: The log's directory.
        entity: The entity in the form in which it is recorded; see `pseudonym`.

    Returns:
        Whether the entity was not erased before.

    Raises:
        LogError: There is no log, the entity is empty, or the file cannot be written.
    """
    if not any(directory.glob("*.seg")):
        raise LogError(
            f'"{directory}" holds no segments; give the directory that the server\'s [log] dir names'
        )
    if not entity:
        raise LogError("the entity is empty; decisions without one are of no entity in particular")
    before = erased(directory)
    salt = before.salt or secrets.token_hex(16)
    line = fingerprint(salt, entity)
    if line in before.hashes:
        return False
    path = directory / FILE
    try:
        write_atomically(path, "".join(f"{one}\n" for one in [salt, *sorted(before.hashes), line]).encode())
        path.chmod(0o640)
    except OSError as error:
        raise LogError(f'"{path}" cannot be written: {error.strerror}') from None
    return True
