"""The external lists of a server: following their newest versions, and the server's copies of them on disk.

A list is followed while a bundle in memory declares it. Versions are copied before they are loaded, so that a
restarted server has the last versions that it used without the registry.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from scorer.control.dataplane import DataPlane
from scorer.control.state import StateDirectory
from scorer.durable import write_atomically
from scorer.errors import RegistryUnavailableError, ScorerError, UnknownReferenceError
from scorer.events import EventLog
from scorer.registry import files
from scorer.registry.base import BundleSource, Resolved
from scorer.registry.lists import alias_of

FILE = "lists.json"
_FORMAT = 1
_MOST = 1000
"""Largest number of lists whose last versions are stored."""
_UNUSED_BYTES = 1 << 30
"""Limit on the total size of the copies of lists that no bundle in memory declares."""


@dataclass(frozen=True, slots=True)
class UsedVersion:
    """The version of a list that this server used last."""

    digest: str
    version: int


@dataclass(frozen=True, slots=True)
class _SavedLists:
    format: int = _FORMAT
    lists: Mapping[str, UsedVersion] = field(default_factory=dict)


_SAVED = TypeAdapter(_SavedLists)


@dataclass(frozen=True, slots=True)
class RefusedVersion:
    """The newest version of a list, if it is not in use."""

    at_ms: int
    digest: str
    """Digest of the version; empty if none is published."""
    reason: str
    fingerprint: Hashable = None
    transient: bool = False
    """Whether copying failed, and not a check. The version is then tried again at every poll."""


class ExternalLists:
    """Loads the external lists that the bundles in memory declare.

    Args:
        plane: The data plane.
        source: The registry.
        state: The state directory.
        events: The event log.
        now_ms: Returns the time in milliseconds since the Unix epoch.
    """

    def __init__(
        self,
        plane: DataPlane,
        source: BundleSource,
        state: StateDirectory,
        events: EventLog,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.refused: dict[str, RefusedVersion] = {}
        """Why the newest version of a list is not in use, by name of the list."""
        self._plane = plane
        self._source = source
        self._state = state
        self._events = events
        self._now_ms = now_ms
        self._used: dict[str, UsedVersion] = {}
        self._declared: tuple[str, ...] = ()
        self._lock = asyncio.Lock()

    @property
    def aliases(self) -> tuple[str, ...]:
        """The aliases of the lists that bundles in memory declare."""
        return tuple(alias_of(name) for name in self._declared)

    @property
    def is_failing(self) -> bool:
        """Whether the newest version of a list must be copied again."""
        return any(refused.transient for refused in self.refused.values())

    def read(self) -> None:
        """Read which versions an earlier process of this server used.

        A damaged file is reported and ignored.
        """
        path = self._state.path / FILE
        try:
            saved = _SAVED.validate_json(path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as error:
            what = error.strerror if isinstance(error, OSError) else "it is damaged"
            self._events.error(
                "lists_unreadable", error=f'"{path}" cannot be read ({what}); it is written anew'
            )
            return
        if saved.format == _FORMAT:
            self._used = dict(saved.lists)

    async def complete(self) -> None:
        """Load the lists of a bundle that was just loaded: the versions in use, and those not known yet.

        A list that cannot be loaded does not stop the bundle: rules that read it are errors and do not fire.
        """
        async with self._lock:
            for name in await self._names():
                if name in self._used and await self._load_copy(name):
                    continue
                with suppress(RegistryUnavailableError):
                    await self._follow(name)

    async def follow(self) -> None:
        """Load the newest version of every declared list.

        Raises:
            RegistryUnavailableError: The registry cannot be read.
        """
        async with self._lock:
            for name in await self._names():
                await self._follow(name)
            self.refused = {name: one for name, one in self.refused.items() if name in self._declared}
            await asyncio.to_thread(self._remove_unused)

    async def may_have_healed(self) -> bool:
        """Return whether a refused version must be tried again although no alias has moved."""
        for refused in self.refused.values():
            if refused.transient:
                return True
            if refused.digest and refused.fingerprint != await self._fingerprint(refused.digest):
                return True
        return False

    async def _names(self) -> tuple[str, ...]:
        status = await asyncio.to_thread(self._plane.status)
        self._declared = tuple(one["name"] for one in status.get("lists", ()) if one.get("bundles"))
        return self._declared

    async def _load_copy(self, name: str) -> bool:
        used = self._used[name]
        path = self._path(used.digest)
        if not path.is_dir():
            return False
        try:
            await asyncio.to_thread(self._plane.load_list, path, used.digest, name, known=True)
        except ScorerError as error:
            self._events.error("list_copy_refused", list=name, digest=used.digest, error=str(error))
            shutil.rmtree(path, ignore_errors=True)
            return False
        return True

    async def _follow(self, name: str) -> None:
        try:
            target = await asyncio.to_thread(self._source.resolve, alias_of(name))
        except UnknownReferenceError:
            reason = f"no version is published; publish one with `scorer lists put {name} FILE`"
            self._refuse(name, RefusedVersion(self._now_ms(), "", reason))
            return
        used = self._used.get(name)
        if used and used.digest == target.digest and self._path(used.digest).is_dir():
            self.refused.pop(name, None)
            return
        fingerprint = await self._fingerprint(target.digest)
        refused = self.refused.get(name)
        if (
            refused
            and not refused.transient
            and (refused.digest, refused.fingerprint) == (target.digest, fingerprint)
        ):
            return
        try:
            report = await asyncio.to_thread(self._copy_and_load, name, target)
        except RegistryUnavailableError:
            raise
        except (ScorerError, OSError) as error:
            transient = isinstance(error, OSError)
            reason = str(error)
            if isinstance(error, OSError):
                await asyncio.to_thread(self._plane.note_list_copy_failed, name)
                reason = f"cannot be copied: {error.strerror or error}"
            self._refuse(name, RefusedVersion(self._now_ms(), target.digest, reason, fingerprint, transient))
        else:
            self.refused.pop(name, None)
            self._events.info(
                "list_followed", list=name, version=report["version"], previous=report["previous"],
                digest=target.digest, changed_at_ms=target.changed_at_ms,
            )  # fmt: skip

    def _copy_and_load(self, name: str, target: Resolved) -> Mapping[str, Any]:
        """Copy a version, load it, and keep the copy. The copy is kept only if the data plane accepts it."""
        used = self._used.get(name)
        path = self._path(target.digest)
        with files.staged(self._state.path / "staging") as temporary:
            self._source.copy(target, temporary)
            report = self._plane.load_list(temporary, target.digest, name, used.version if used else 0)
            files.commit(temporary, path)
        self._used.pop(name, None)  # the list that was loaded last is the last one
        self._used[name] = UsedVersion(target.digest, int(report["version"]))
        self._used = dict(list(self._used.items())[-_MOST:])
        text = json.dumps(_SAVED.dump_python(_SavedLists(_FORMAT, self._used), mode="json"), indent=1)
        write_atomically(self._state.path / FILE, text.encode() + b"\n")
        kept = {used.digest.removeprefix("sha256:") for used in self._used.values()}
        for entry in path.parent.iterdir():
            if entry.name not in kept:
                files.remove(entry, staging=self._state.path / "staging")
        return report

    def _remove_unused(self) -> None:
        """Delete copies of lists that no bundle in memory declares, beyond their limit.

        Those that were loaded most recently stay. Their numbers stay in any case, so that no older version is
        accepted. This is not done while a server starts, when bundles that declare a list may not be loaded.
        """
        left = _UNUSED_BYTES
        for name, used in reversed(list(self._used.items())):
            path = self._path(used.digest)
            if name not in self._declared and path.is_dir():
                left -= files.size_of(path)
                if left < 0:
                    files.remove(path, staging=self._state.path / "staging")

    def _refuse(self, name: str, refused: RefusedVersion) -> None:
        known = self.refused.get(name)
        self.refused[name] = refused
        if known and (known.digest, known.reason) == (refused.digest, refused.reason):
            return  # the same refusal was logged before
        used = self._used.get(name)
        self._events.error(
            "list_not_followed",
            list=name,
            digest=refused.digest,
            reason=refused.reason,
            version_in_use=used.version if used else 0,
        )

    async def _fingerprint(self, digest: str) -> Hashable:
        return await asyncio.to_thread(self._source.fingerprint, digest)

    def _path(self, digest: str) -> Path:
        return self._state.path / "lists" / digest.removeprefix("sha256:")
