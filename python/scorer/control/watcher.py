"""Polling of the registry: detecting moves of aliases, serving their targets, and recording rejections."""

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
    """A candidate that was rejected. It is tried again when its alias or its bytes change."""

    at_ms: int
    checkpoint: str
    bundle: str
    """Digest of the bundle; the alias if it cannot be resolved."""
    reason: str
    fingerprint: Hashable = None
    transient: bool = False
    """Whether copying failed, and not a check. The candidate is then tried again at every poll."""


class Watcher:
    """Compares the aliases of the settings with the registry, periodically and after `wake`.

    Args:
        controller: The controller, which serves the targets of aliases.
        now_ms: Returns the time in milliseconds since the Unix epoch.
        jitter: Returns a number that is uniform on [0, 1).
    """

    def __init__(
        self,
        controller: Controller,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.rejections: dict[str, Rejection] = {}
        """The rejected candidate of each checkpoint whose alias points to one."""
        self.drifts: dict[str, str] = {}
        """The new target of the alias of a managed checkpoint, if it was moved to a bundle that does not
        answer."""
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
        """Start the next poll immediately, because an alias is reported to have moved."""
        self._woken.set()

    async def run(self) -> None:
        """Poll until the task is cancelled. Errors are logged, and the next poll tries again."""
        await self._controller.restore_observers()
        await self._controller.load_previous()
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), self.delay())
            # Cleared before the poll, so that a move during the poll causes another one.
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
        """Return the seconds until the next pass.

        It is the interval of the settings. While the registry fails, it doubles with every failure, up to 5 s
        or the interval, whichever is longer, with a jitter of 20 %.
        """
        interval = self._controller.settings.registry.interval_ms / 1e3
        if not self._failures:
            return interval
        longest = max(interval, _MAX_DELAY)
        # The jitter prevents many servers from polling a registry at the same time after an outage.
        return min(longest, interval * 2.0 ** min(self._failures, 20)) * (0.8 + 0.4 * self._jitter())

    async def poll(self) -> None:
        """Compare all followed aliases with the registry once."""
        await self._controller.save_if_needed()
        try:
            seen_at_us = self._now_ms() * 1000
            lists = self._controller.lists
            aliases = (*self._controller.settings.aliases, *lists.aliases)
            # The value includes the aliases, so that a new one is followed even if the registry is unchanged.
            version = aliases, await asyncio.to_thread(self._source.version, aliases)
            # Servers of the shadow pool do not follow aliases.
            is_live = self._controller.role == "live"
            # A release can end a drift without a change in the registry, so drifts are checked at every poll.
            is_due = version != self._seen or bool(self.drifts)
            if is_live and (is_due or await asyncio.to_thread(self._may_have_healed)):
                await self._follow_all(seen_at_us)
            if is_due or await lists.may_have_healed():
                await lists.follow()
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
        """Let the controller serve a candidate unless it already does or has rejected the same bytes."""
        following = self._controller.following[checkpoint]
        answering = self._controller.table.checkpoints[checkpoint]
        if checkpoint in self._controller.managed and answering:
            # Only if the managed checkpoint has lanes: without lanes, the target of the alias is served.
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
        """Log an alias of a managed checkpoint that was moved to a bundle which does not answer."""
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
        """Return whether a rejected candidate must be tried again although no alias has moved."""
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
            return  # the same rejection was logged before
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
        # The first poll after the outage must compare all aliases.
        self._seen = None

    def _found(self) -> None:
        if not self.reachable:
            self._controller.events.info("registry_reachable", location=self._source.location)
        rejected = any(rejection.transient for rejection in self.rejections.values())
        transient = rejected or self._controller.lists.is_failing
        self._failures = self._failures + 1 if transient else 0
        self.reachable, self.error, self.last_seen_ms = True, "", self._now_ms()
        self._controller.plane.note_registry(True, self.last_seen_ms)
