"""What the server remembers across restarts: the last known good table and its bundles.

::

    <state_dir>/last-known-good.json    replaced in one step, synced
    <state_dir>/bundles/<hex>/...       own copies, so that the registry may be gone
    <state_dir>/staging/                copies under way
    <state_dir>/lock                    held by the one server that uses the directory
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
    """How a checkpoint relates to its registry alias."""

    alias: str
    digest: str | None = None
    """Where the alias pointed when it was last acted upon."""
    pinned: bool = False
    """Changed by hand since: the alias is not followed until it moves."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """Everything in the state file."""

    table: LaneTable
    before: Mapping[str, Lanes] = field(default_factory=dict)
    """The lanes that each checkpoint had before its current ones."""
    changed_last: tuple[str, ...] = ()
    """The checkpoints in which the table before the current one differs."""
    following: Mapping[str, Following] = field(default_factory=dict)
    reserved: int = 0
    """The highest table version ever attempted: a version never means two tables."""
    pending: Mapping[str, Lanes] = field(default_factory=dict)
    """Observe lanes that are wanted and, since the last start, not yet in the table."""
    managed: Mapping[str, str] = field(default_factory=dict)
    """By checkpoint: the platform that manages it."""
    break_glass: Mapping[str, BreakGlass] = field(default_factory=dict)
    """By checkpoint: the latest change that its platform did not make."""
    added: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By name: the settings of the checkpoints that were added while the server ran."""
    removed: tuple[str, ...] = ()
    """Those that are not added again at the next start. Until then they have no lanes."""


_STATE = TypeAdapter(SavedState)
"""Reads files of earlier versions too: what they lack has its default."""


class StateDirectory:
    """The directory. One server uses it at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def prepare(self) -> None:
        """Makes the directory and takes it for this server.

        Raises:
            StateError: It cannot be written, or another server has it.
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
        """Lets another server have the directory. The system does the same when the process ends."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- the file ---

    def read(self) -> SavedState | None:
        """What was remembered last; None on first start.

        Raises:
            StateError: The file is damaged. The registry can still be used.
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
        """Replaces what is remembered, on disk when it returns."""
        body = _STATE.dump_python(remembered, mode="json")
        document = {"format": _FORMAT, "sha256": _digest(body), "state": body}
        write_atomically(self.path / FILE, json.dumps(document, indent=1).encode() + b"\n")

    # --- the bundles ---

    def bundle(self, digest: str) -> Path:
        """Where a bundle's own copy is, or would be."""
        return self.path / "bundles" / digest.removeprefix("sha256:")

    def digests(self) -> set[str]:
        """The bundles of which there is a copy."""
        with suppress(FileNotFoundError):
            return {f"sha256:{entry.name}" for entry in (self.path / "bundles").iterdir()}
        return set()

    def stage(self, digest: str, fill: Callable[[Path], None]) -> Path:
        """Takes a bundle in, whole or not at all; a copy that exists is kept.

        Args:
            digest: Of the bundle.
            fill: Copies the bundle into a directory of its own and verifies it there; what it raises leaves
                nothing behind.
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
        """Deletes every copy that is not to be kept."""
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
