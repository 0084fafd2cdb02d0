"""Follows the registry: sees aliases move, offers what they point to, remembers what was refused."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass

from scorer.control.controller import Controller
from scorer.control.lanes import only
from scorer.errors import RegistryUnavailableError, ScorerError
from scorer.registry.base import Resolved

_MAX_DELAY = 5.0
_BREAKER_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Rejection:
    """A candidate that is not served, and why. It is tried again when its alias or its bytes change."""

    at_ms: int
    checkpoint: str
    bundle: str
    """A digest; the alias itself where that cannot be resolved."""
    reason: str
    fingerprint: Hashable = None
    transient: bool = False
    """Copying failed, not checking: tried again without any change."""


class Watcher:
    """One pass after another over the aliases that the settings name."""

    def __init__(
        self,
        controller: Controller,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.rejections: dict[str, Rejection] = {}
        """By checkpoint: the candidate that its alias points to now, if it was refused."""
        self.drifts: dict[str, str] = {}
        """By managed checkpoint: the digest that its alias was moved to by others, which is not served."""
        self.reachable = False
        self.error = ""
        self.last_seen_ms = 0
        self._controller = controller
        self._source = controller.source
        self._now_ms = now_ms
        self._jitter = jitter
        self._seen: Hashable = None
        self._failures = 0
        self._breakers_due = 0.0
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Brings the next pass forward: somebody says that an alias moved."""
        self._woken.set()

    async def run(self) -> None:
        """Polls until cancelled. No error ends it: the next pass may fare better."""
        await self._controller.restore_observers()
        await self._controller.load_previous()
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), self.delay())
            # Cleared before the look: what moves during it is looked at again.
            self._woken.clear()
            try:
                await self._withdraw_failing()
                await self.poll()
            except Exception as error:
                self._failures += 1
                self._controller.events.defect("watcher_failed", error)

    async def _withdraw_failing(self) -> None:
        now = time.monotonic()
        if now >= self._breakers_due:
            self._breakers_due = now + _BREAKER_SECONDS
            await self._controller.quarantine.add_failing()

    def delay(self) -> float:
        """Seconds to the next pass: the settings' interval, doubling while the registry fails, up to 5 s."""
        interval = self._controller.settings.registry.interval_ms / 1e3
        if not self._failures:
            return interval
        longest = max(interval, _MAX_DELAY)
        # Jitter: many servers that lost one registry must not come back in step.
        return min(longest, interval * 2.0 ** min(self._failures, 20)) * (0.8 + 0.4 * self._jitter())

    async def poll(self) -> None:
        """Compare all followed aliases with the registry once."""
        await self._controller.save_if_needed()
        try:
            seen_at_us = self._now_ms() * 1000
            aliases = tuple(self._controller.settings.aliases)
            # An alias that is new here is followed, whether or not anything moved in the registry.
            version = aliases, await asyncio.to_thread(self._source.version, aliases)
            # The shadow pool answers nobody: aliases are nothing to it.
            is_live = self._controller.role == "live"
            # A drift ends by a release as well, which moves nothing in the registry.
            is_due = version != self._seen or bool(self.drifts)
            if is_live and (is_due or await asyncio.to_thread(self._may_have_healed)):
                await self._follow_all(seen_at_us)
        except RegistryUnavailableError as error:
            self._lost(str(error))
            return
        self._seen = version
        self._found()

    async def _follow_all(self, seen_at_us: int) -> None:
        for checkpoint, settings in self._controller.settings.checkpoints.items():
            if not settings.alias:
                continue
            try:
                target = await asyncio.to_thread(self._source.resolve, settings.alias)
            except RegistryUnavailableError:
                raise
            except ScorerError as error:
                self._reject(Rejection(self._now_ms(), checkpoint, settings.alias, str(error)))
                continue
            await self._offer(checkpoint, target, seen_at_us)

    async def _offer(self, checkpoint: str, target: Resolved, seen_at_us: int) -> None:
        """Has the controller serve a candidate, unless it does already or refused these very bytes."""
        following = self._controller.following[checkpoint]
        answering = self._controller.table.checkpoints[checkpoint]
        if checkpoint in self._controller.managed and answering:
            # Without any lanes there is nothing to protect: serving what the alias names is better.
            self._compare(checkpoint, target.digest)
            return
        self.drifts.pop(checkpoint, None)
        if following.pinned and following.digest == target.digest:
            self.rejections.pop(checkpoint, None)
            return
        served = self._controller.table.checkpoints[checkpoint] == only(target.digest)
        if served and following.digest == target.digest and not following.pinned:
            self.rejections.pop(checkpoint, None)
            return
        fingerprint = await asyncio.to_thread(self._source.fingerprint, target.digest)
        refused = self.rejections.get(checkpoint)
        if (
            refused
            and not refused.transient
            and (refused.bundle, refused.fingerprint) == (target.digest, fingerprint)
        ):
            return
        try:
            await self._controller.follow(checkpoint, target, noticed_at_us=seen_at_us)
        except RegistryUnavailableError:
            raise
        except (ScorerError, OSError) as error:
            transient = isinstance(error, OSError)
            reason = str(error)
            if isinstance(error, OSError):
                reason = f"cannot be copied: {error.strerror or error}"
            self._reject(Rejection(self._now_ms(), checkpoint, target.digest, reason, fingerprint, transient))
        else:
            self.rejections.pop(checkpoint, None)

    def _compare(self, checkpoint: str, digest: str) -> None:
        """Report the alias of a managed checkpoint where it was moved to something that does not answer."""
        self.rejections.pop(checkpoint, None)
        answering = self._controller.table.checkpoints[checkpoint]
        moved = digest != self._controller.following[checkpoint].digest
        if not moved or any(lane.bundle == digest for lane in answering):
            self.drifts.pop(checkpoint, None)
            return
        if self.drifts.get(checkpoint) != digest:
            self.drifts[checkpoint] = digest
            self._controller.events.warning(
                "alias_drift",
                checkpoint=checkpoint,
                alias=self._controller.settings.checkpoints[checkpoint].alias,
                points_to=digest,
                serving=[lane.bundle for lane in answering],
                managed_by=self._controller.managed[checkpoint],
            )

    def _may_have_healed(self) -> bool:
        """Whether some refused candidate is worth another look though no alias moved."""
        return any(
            rejection.transient
            or (
                rejection.fingerprint is not None
                and self._source.fingerprint(rejection.bundle) != rejection.fingerprint
            )
            for rejection in self.rejections.values()
        )

    def _reject(self, rejection: Rejection) -> None:
        known = self.rejections.get(rejection.checkpoint)
        self.rejections[rejection.checkpoint] = rejection
        if known and (known.bundle, known.reason) == (rejection.bundle, rejection.reason):
            return  # said already
        self._controller.events.error(
            "candidate_refused",
            checkpoint=rejection.checkpoint,
            bundle=rejection.bundle,
            reason=rejection.reason,
            live=[lane.bundle for lane in self._controller.table.checkpoints[rejection.checkpoint]],
        )

    def _lost(self, error: str) -> None:
        self._failures += 1
        if self.reachable or error != self.error:
            self._controller.events.error(
                "registry_unavailable", error=error, serving=self._controller.is_ready()
            )
        self.reachable, self.error = False, error
        self._controller.plane.note_registry(False, self.last_seen_ms)
        # Whatever the registry says when it is back must be looked at.
        self._seen = None

    def _found(self) -> None:
        if not self.reachable:
            self._controller.events.info("registry_reachable", location=self._source.location)
        transient = any(rejection.transient for rejection in self.rejections.values())
        self._failures = self._failures + 1 if transient else 0
        self.reachable, self.error, self.last_seen_ms = True, "", self._now_ms()
        self._controller.plane.note_registry(True, self.last_seen_ms)
