"""The bundles that the data plane has in memory, and the server's copies of them on disk.

Every bundle is copied before it is loaded, so that a restarted server can load it without the registry.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scorer.control.dataplane import DataPlane, LoadFor
from scorer.control.lanes import Lane, Lanes
from scorer.control.lists import ExternalLists
from scorer.control.state import StateDirectory
from scorer.control.vetting import Vetting
from scorer.errors import BundleError, LoadError, RegistryUnavailableError, ScorerError
from scorer.events import EventLog
from scorer.registry.base import BundleSource, Resolved
from scorer.registry.reference import DigestReference, parse_reference, pick_digest

# The purpose of loading a copy after a start. The server has served the bundle before.
_KNOWN = LoadFor(known=True)


class LoadedBundles:
    """Loads, copies and unloads bundles. The caller holds the lock of the lane table."""

    def __init__(
        self,
        plane: DataPlane,
        source: BundleSource,
        state: StateDirectory,
        vetting: Vetting,
        events: EventLog,
    ) -> None:
        self.plane = plane
        self.source = source
        self.state = state
        self.vetting = vetting
        self.lists = ExternalLists(plane, source, state, events)
        """The external lists of the loaded bundles."""
        self.reports: dict[str, Mapping[str, Any]] = {}
        """The data plane's report on loading each loaded bundle, by digest."""
        self._events = events

    # --- references ---

    def resolve(self, reference: str) -> Resolved:
        """Return the bundle that a reference names. This call blocks.

        While the registry is unavailable, digests and prefixes of bundles with a copy are still resolved.

        Raises:
            RegistryError: The reference is unknown or ambiguous, or the registry is unavailable.
        """
        try:
            return self.source.resolve(reference)
        except RegistryUnavailableError:
            parsed = parse_reference(reference)
            own = {digest.removeprefix("sha256:") for digest in self.state.digests()}
            if not isinstance(parsed, DigestReference) or not any(d.startswith(parsed.prefix) for d in own):
                raise
            digest = f"sha256:{pick_digest(parsed, own, str(self.state.path))}"
            return Resolved(digest, None)

    async def resolve_lanes(self, lanes: Sequence[Lane]) -> tuple[Lanes, dict[str, Resolved]]:
        """Return the lanes with digests instead of references, and the origin of each bundle by digest."""
        found = [await asyncio.to_thread(self.resolve, lane.bundle) for lane in lanes]
        digests = tuple(
            replace(lane, bundle=target.digest) for lane, target in zip(lanes, found, strict=True)
        )
        return digests, {target.digest: target for target in found}

    # --- loading ---

    async def load(
        self, digest: str, origin: Resolved | None, wanted: LoadFor, *, is_compared: bool = True
    ) -> float:
        """Load a bundle from its copy. If there is no copy, the bundle is copied first.

        Args:
            digest: Digest of the bundle.
            origin: Location of the bundle in the registry; None: only the copy can be used.
            wanted: The purpose of the load.
            is_compared: Whether the bundle's speed has been compared with that of the live bundle. A loaded
                bundle that has only observed has not been compared; it is warmed up again if `wanted` names
                a checkpoint.

        Returns:
            The duration in milliseconds; 0 if the bundle was loaded already.

        Raises:
            LoadError, BundleError: The bundle is rejected.
            RegistryUnavailableError, OSError: The bundle cannot be copied.
        """
        self.vetting.check(digest)
        if digest in self.reports:
            if await asyncio.to_thread(self._is_loaded, digest):
                if wanted.checkpoint is not None and not is_compared:
                    await asyncio.to_thread(self.plane.load, self.state.bundle(digest), digest, wanted)
                return 0.0
            # The data plane has unloaded the bundle because of a lack of memory.
            del self.reports[digest]
        started = asyncio.get_running_loop().time()
        had_copy = self.state.bundle(digest).is_dir()
        try:
            if had_copy or origin is None:
                await self.load_copy(digest, wanted)
            else:
                await self._copy_and_load(digest, origin, wanted)
        except (LoadError, BundleError):
            await asyncio.to_thread(self.state.discard, digest)
            if not had_copy or origin is None:
                raise
            # The copy was damaged after it was made; the original may be intact.
            await self._copy_and_load(digest, origin, wanted)
        await self.lists.complete()
        return (asyncio.get_running_loop().time() - started) * 1e3

    async def load_copy(self, digest: str, wanted: LoadFor = _KNOWN) -> None:
        """Load a bundle from its copy, unless it is loaded.

        Raises:
            LoadError, BundleError, OSError: The bundle is refused, or there is no intact copy.
        """
        self.vetting.check(digest)
        if digest not in self.reports:
            self.reports[digest] = await asyncio.to_thread(
                self.plane.load, self.state.bundle(digest), digest, wanted
            )
            await self.lists.complete()

    async def unload(self, digests: Iterable[str]) -> None:
        """Unload bundles that no lane table contains. A failure is logged."""
        for digest in digests:
            self.reports.pop(digest, None)
            try:
                await asyncio.to_thread(self.plane.unload, digest)
            except ScorerError as error:
                self._events.warning("not_unloaded", bundle=digest, error=str(error))

    async def keep(self, needed: set[str]) -> None:
        """Unload every other bundle and delete its copy."""
        await self.unload(set(self.reports) - needed)
        await self.collect(needed)

    async def collect(self, needed: set[str]) -> None:
        """Delete the copies of all other bundles. A failure is logged."""
        try:
            await asyncio.to_thread(self.state.collect, needed)
        except OSError as error:
            self._events.warning("copies_not_deleted", error=str(error))

    # --- the features of a bundle ---

    async def with_reads(self, lane: Lane, origin: Resolved) -> Lane:
        """Return a lane of the shadow pool with the features that its bundle reads.

        The bundle is copied and its signature verified. It is not loaded: the pool evaluates it.
        """

        def fill(staging: Path) -> None:
            self.source.copy(origin, staging)
            self.vetting.check_copy(staging)

        await asyncio.to_thread(self.state.stage, lane.bundle, fill)
        features = await asyncio.to_thread(self.features_of, lane.bundle)
        return replace(lane, reads=tuple(sorted(features or ())))

    def features_of(self, digest: str) -> set[str] | None:
        """Return the features that a bundle reads; None if its copy does not state them. This call blocks."""
        try:
            schema = json.loads((self.state.bundle(digest) / "schema.json").read_bytes())
            return {str(feature["name"]) for feature in schema["features"]}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _is_loaded(self, digest: str) -> bool:
        return any(entry.get("digest") == digest for entry in self.plane.status().get("bundles", ()))

    async def _copy_and_load(self, digest: str, origin: Resolved, wanted: LoadFor) -> None:
        """Copy a bundle and load it. The copy is kept only if the data plane has verified it completely."""

        def fill(staging: Path) -> None:
            begun = time.perf_counter_ns()
            self.source.copy(origin, staging)
            fetched = replace(wanted, fetch_us=(time.perf_counter_ns() - begun) // 1000)
            self.reports[digest] = self.plane.load(staging, digest, fetched)

        try:
            await asyncio.to_thread(self.state.stage, digest, fill)
        except (ScorerError, OSError):
            # Without a copy, the server could not load the bundle after a restart.
            await self.unload({digest} & self.reports.keys())
            raise
