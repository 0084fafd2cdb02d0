"""The state directory, which keeps the last known good lane table and its bundles across restarts.

::

    <state_dir>/last-known-good.json    the state file, replaced atomically and synced
    <state_dir>/bundles/<hex>/...       copies of bundles, for starts without the registry
    <state_dir>/staging/                unfinished copies
    <state_dir>/lock                    locked by the server that uses the directory
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from scorer.control.lanes import Lanes, LaneTable
from scorer.control.management import BreakGlass
from scorer.durable import write_atomically
from scorer.errors import ScorerError
from scorer.registry import files

FILE = "last-known-good.json"
_FORMAT = 1


class StateError(ScorerError):
    """The state file cannot be used."""


@dataclass(frozen=True, slots=True)
class Following:
    """The relation of a checkpoint to its registry alias."""

    alias: str
    digest: str | None = None
    """Target of the alias when the server last followed it or pinned the checkpoint."""
    pinned: bool = False
    """Whether the lanes were changed manually since. The alias is then not followed until it moves."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """The content of the state file."""

    table: LaneTable
    before: Mapping[str, Lanes] = field(default_factory=dict)
    """The lanes that each checkpoint had before its current ones."""
    changed_last: tuple[str, ...] = ()
    """The checkpoints that the last change affected."""
    following: Mapping[str, Following] = field(default_factory=dict)
    reserved: int = 0
    """The highest table version that was attempted, so that no two tables have the same version."""
    pending: Mapping[str, Lanes] = field(default_factory=dict)
    """Observe lanes that are not yet in the table since the last start."""
    managed: Mapping[str, str] = field(default_factory=dict)
    """The platform that manages each managed checkpoint."""
    break_glass: Mapping[str, BreakGlass] = field(default_factory=dict)
    """The latest change of each managed checkpoint that its platform did not make."""
    added: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of the checkpoints that were added while the server ran, by name."""
    removed: tuple[str, ...] = ()
    """Added checkpoints that the next start does not add again. Until then they have no lanes."""


_STATE = TypeAdapter(SavedState)
"""Also reads files of earlier versions. Fields that they lack get their defaults."""


class StateDirectory:
    """The state directory. Only one server uses it at a time.

    Args:
        path: The directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def prepare(self) -> None:
        """Create the directory, lock it for this server, and delete unfinished copies.

        Raises:
            StateError: The directory cannot be written, or another server uses it.
        """
        try:
            (self.path / "bundles").mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise StateError(
                f'state_dir "{self.path}" is used by another server; stop it, or give each its own'
            ) from None
        except OSError as error:
            raise self._not_writable(error) from error
        try:
            shutil.rmtree(self._staging, ignore_errors=True)
            self._staging.mkdir()
        except OSError as error:
            raise self._not_writable(error) from error

    def release(self) -> None:
        """Release the lock of the directory. The kernel does the same when the process ends."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- the file ---

    def read(self) -> SavedState | None:
        """Return the saved state, or None on the first start.

        Raises:
            StateError: The file is damaged. The server can still start from the registry.
        """
        path = self.path / FILE
        try:
            document = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise StateError(f'"{path}" cannot be read ({error}); it is ignored and written anew') from error
        try:
            body = document["state"]
            if document["format"] != _FORMAT or document["sha256"] != _digest(body):
                raise StateError(f'"{path}" is damaged or of another version; it is ignored and written anew')
            return _STATE.validate_python(body)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f'"{path}" is damaged ({error!r}); it is ignored and written anew') from error

    def write(self, remembered: SavedState) -> None:
        """Replace the saved state atomically. It is on disk when this method returns.

        Raises:
            OSError: The file cannot be written.
        """
        body = _STATE.dump_python(remembered, mode="json")
        document = {"format": _FORMAT, "sha256": _digest(body), "state": body}
        write_atomically(self.path / FILE, json.dumps(document, indent=1).encode() + b"\n")

    # --- the bundles ---

    def bundle(self, digest: str) -> Path:
        """Return the directory of a bundle's copy, which need not exist."""
        return self.path / "bundles" / digest.removeprefix("sha256:")

    def digests(self) -> set[str]:
        """Return the digests of the bundles that have a copy."""
        with suppress(FileNotFoundError):
            return {f"sha256:{entry.name}" for entry in (self.path / "bundles").iterdir()}
        return set()

    def stage(self, digest: str, fill: Callable[[Path], None]) -> Path:
        """Copy a bundle atomically and return the directory of the copy. An existing copy is kept.

        Args:
            digest: Digest of the bundle.
            fill: Function that copies the bundle into the given directory and verifies it. If it raises, no
                copy is created.
        """
        target = self.bundle(digest)
        if not target.is_dir():
            with files.staged(self._staging) as temporary:
                fill(temporary)
                files.commit(temporary, target)
        return target

    def discard(self, digest: str) -> None:
        """Delete the local copy of a bundle."""
        files.remove(self.bundle(digest), staging=self._staging)

    def collect(self, keep: set[str]) -> None:
        """Delete the copies of all bundles except those with the given digests."""
        for digest in self.digests() - keep:
            self.discard(digest)

    def _not_writable(self, error: OSError) -> StateError:
        return StateError(
            f'state_dir "{self.path}" cannot be written: {error.strerror}; make it writable or choose another'
        )

    @property
    def _staging(self) -> Path:
        return self.path / "staging"


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
