"""The withdrawal of bundles: a bundle in quarantine loses its lanes and is not loaded again."""

from __future__ import annotations

import asyncio
import time

from scorer.control.active import ActiveLanes
from scorer.control.dataplane import LoadFor
from scorer.control.lanes import Lanes, without
from scorer.control.management import Caller, breaks_glass
from scorer.registry.reference import DigestReference, full_digest, parse_reference


class Quarantine:
    """Withdraws bundles, on request or when they fail, and lifts their quarantine."""

    def __init__(self, active: ActiveLanes) -> None:
        self._active = active
        self._vetting = active.loaded.vetting
        self._reported: set[str] = set()
        """The failing bundles that no other bundle can replace and that were logged already."""

    async def add(self, digest: str, *, by: str, reason: str) -> tuple[str, ...]:
        """Put a bundle into quarantine and end its lanes where another bundle can take over.

        If the bundle shares a checkpoint, the other lanes take its traffic; if it answers alone, the lanes
        that were active before are restored.

        Args:
            digest: The bundle.
            by: Who withdraws it, for the log.
            reason: Kept in the log and in the quarantine.

        Returns:
            The checkpoints at which it continues to answer, because no other bundle is known there.

        Raises:
            VettingError: The quarantine is full.
        """
        async with self._active.lock:
            self._active.check_running()
            return await self._withdraw(digest, by=by, reason=reason)

    async def lift(self, digest: str, *, by: str, reason: str) -> bool:
        """Lift the quarantine of a bundle; return False if the bundle is not in quarantine."""
        async with self._active.lock:
            if not self._vetting.remove(digest):
                return False
            await self._active.save_verdicts()
            self._active.events.warning("quarantine_lifted", bundle=digest, by=by, reason=reason)
            return True

    async def digest_of(self, reference: str) -> str:
        """Return the digest that a reference names. A complete digest need not be in the registry.

        Raises:
            RegistryError: The reference is unknown or ambiguous, or the registry is unavailable.
        """
        full = full_digest(reference)
        if full is not None:
            return f"sha256:{full}"
        parsed = parse_reference(reference)
        if isinstance(parsed, DigestReference):
            prefix = f"sha256:{parsed.prefix}"
            found = [digest for digest in self._vetting.quarantine if digest.startswith(prefix)]
            if len(found) == 1:
                return found[0]
        return (await asyncio.to_thread(self._active.loaded.resolve, reference)).digest

    async def add_failing(self) -> None:
        """Withdraw every bundle whose circuit breaker is open, where another bundle can take over."""
        active = self._active
        status = await asyncio.to_thread(active.loaded.plane.status)
        for entry in status.get("bundles", ()):
            digest = str(entry.get("digest"))
            if entry.get("breaker", "closed") == "closed":
                self._reported.discard(digest)
                continue
            async with active.lock:
                is_replaceable = any(self._replacement(name, digest) for name in active.table.checkpoints)
                if is_replaceable and digest not in self._vetting.quarantine and not active.is_draining:
                    await self._withdraw(digest, by="breaker", reason="it panicked or gave no finite answer")
                elif digest in active.table.bundles() and digest not in self._reported:
                    self._reported.add(digest)
                    active.events.error("not_withdrawn", bundle=digest, error="no other bundle can take over")

    def _replacement(self, checkpoint: str, digest: str) -> Lanes:
        """Return the lanes that can replace a bundle at a checkpoint; empty if none can or it has no lane."""
        answering = self._active.table.checkpoints[checkpoint]
        if all(lane.bundle != digest for lane in answering):
            return ()
        return without(answering, digest) or without(self._active.now.before.get(checkpoint, ()), digest)

    async def _withdraw(self, digest: str, *, by: str, reason: str) -> tuple[str, ...]:
        active = self._active
        answer = {
            name: lanes for name in active.table.checkpoints if (lanes := self._replacement(name, digest))
        }
        observe = {
            name: tuple(lane for lane in lanes if lane.bundle != digest)
            for name, lanes in active.table.observe.items()
            if any(lane.bundle == digest for lane in lanes)
        }
        if self._vetting.add(digest, by=by, reason=reason):
            await active.save_verdicts()
            active.events.error("quarantined", bundle=digest, by=by, reason=reason)
        if answer or observe:
            caller = Caller(break_glass=True, by=by)
            broken = [n for n in answer if breaks_glass(n, active.now.managed.get(n, ""), caller, reason)]
            await active.change(
                {},
                answer=answer,
                observe=observe,
                following={name: await active.pinned(name) for name in answer},
                event={"cause": "quarantine", "reason": reason},
                is_rollback=True,
                wanted=LoadFor(noticed_at_us=time.time_ns() // 1000, allow_slower=True),
            )
            if broken:
                await active.note_broken_glass(broken, caller, reason, "quarantine")
        return tuple(
            name
            for name, lanes in active.table.checkpoints.items()
            if any(lane.bundle == digest for lane in lanes)
        )
