"""The active lane table, the state that is saved with it, and the one sequence by which it changes.

Order of every change: copy the bundles → verify, load, warm up → reserve a version on disk → swap → save →
unload what is no longer needed. A failure before the swap changes nothing that is served.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from scorer.config import CheckpointSettings, Settings
from scorer.control.dataplane import LoadFor
from scorer.control.lanes import Lane, Lanes, LaneTable, bundles_of
from scorer.control.loaded import LoadedBundles
from scorer.control.management import Caller, record_of
from scorer.control.state import Following, SavedState
from scorer.errors import ControlUnavailableError, ScorerError, StaleLaneTableError
from scorer.events import EventLog
from scorer.registry.base import Resolved

# For observe lanes there is no SLA: the warm-up is not compared, and no bundle is rejected as too slow.
UNMEASURED = LoadFor()


@dataclass(frozen=True, slots=True)
class Changed:
    """The result of a change."""

    version: int
    """Version of the lane table that is active afterwards."""
    load_ms: float = 0.0
    """Time for copying, loading and warming up bundles, in milliseconds."""
    previous: Lanes = ()
    """The lanes that were replaced, if lanes of one checkpoint were changed."""


class ActiveLanes:
    """The lane table that the data plane uses, and the state that survives restarts.

    `lock` makes changes wait for each other; every coroutine of this class runs under it.
    """

    def __init__(self, settings: Settings, loaded: LoadedBundles, events: EventLog) -> None:
        self.settings = settings
        """The server's settings, with the checkpoints that were added while it ran."""
        self.loaded = loaded
        self.events = events
        self.lock = asyncio.Lock()
        self.is_draining = False
        self.is_saved = True
        """Whether the state file contains the active lane table."""
        self.ready = asyncio.Event()
        """Set when every checkpoint of the configuration has lanes."""
        self.now = SavedState(
            LaneTable(0, dict.fromkeys(settings.checkpoints, ())),
            following={name: Following(c.alias) for name, c in settings.checkpoints.items()},
        )

    @property
    def table(self) -> LaneTable:
        """The lane table that is active now."""
        return self.now.table

    @property
    def is_shadow(self) -> bool:
        """Whether this server belongs to the shadow pool, which observes and does not answer."""
        return self.settings.server.role == "shadow"

    def is_ready(self) -> bool:
        """Return whether every checkpoint of the configuration has lanes. A shadow pool needs none.

        Checkpoints that were added while the server ran do not count.
        """
        return self.is_shadow or not self.missing()

    def missing(self) -> list[str]:
        """Return the checkpoints of the configuration that have no lanes."""
        checkpoints = self.table.checkpoints.items()
        return [name for name, lanes in checkpoints if not lanes and name not in self.now.added]

    def tell_if_ready(self) -> None:
        """Set `ready` if the server is ready."""
        if self.is_ready():
            self.ready.set()

    def check_running(self) -> None:
        """Refuse a change while the server stops.

        Raises:
            ControlUnavailableError: The server stops.
        """
        if self.is_draining:
            raise ControlUnavailableError("the server is stopping; change its successor")

    def check_expected(self, expected: int | None) -> None:
        """Refuse a change that was decided on another lane table.

        Args:
            expected: The version that the caller has seen; None: it is not compared.

        Raises:
            StaleLaneTableError: Another table has been activated since.
        """
        if expected is not None and expected != self.table.version:
            raise StaleLaneTableError(
                f"the lane table is {self.table.version} now, and the change was decided on {expected}; "
                "read the status and decide again"
            )

    # --- the settings of checkpoints ---

    def set_settings(self, name: str, settings: CheckpointSettings) -> None:
        """Replace the settings of a checkpoint, or add them."""
        checkpoints = {**self.settings.checkpoints, name: settings}
        self.settings = self.settings.model_copy(update={"checkpoints": checkpoints})

    def take_in(self, name: str, settings: CheckpointSettings) -> None:
        """Include a checkpoint that was added to the data plane. It has no lanes yet."""
        self.set_settings(name, settings)
        table = replace(self.table, checkpoints={**self.table.checkpoints, name: ()})
        document = settings.model_dump(mode="json", exclude_defaults=True)
        self.now = replace(
            self.now,
            table=table,
            following={**self.now.following, name: Following(settings.alias)},
            added={**self.now.added, name: document},
            removed=tuple(one for one in self.now.removed if one != name),
        )

    # --- change ---

    async def change(
        self,
        origins: Mapping[str, Resolved],
        *,
        answer: Mapping[str, Lanes] = MappingProxyType({}),
        observe: Mapping[str, Lanes] = MappingProxyType({}),
        following: Mapping[str, Following] = MappingProxyType({}),
        event: Mapping[str, Any],
        wanted: LoadFor = UNMEASURED,
        is_rollback: bool = False,
        is_older_fine: bool = False,
    ) -> Changed:
        """Activate a lane table in which some checkpoints have other lanes.

        Args:
            origins: Location in the registry of each bundle that may have to be copied, by digest.
            answer: The new answer lanes by checkpoint.
            observe: The new observe lanes by checkpoint.
            following: The new relation to the alias by checkpoint.
            event: Further fields of the log entry, with the cause.
            wanted: The purpose of the loads.
            is_rollback: The lanes have been active before, and the lanes that they replace are not kept for
                a rollback.
            is_older_fine: Accept a bundle of an older release than this server has served.

        Raises:
            BundleError, LoadError, SwapError: A bundle or the table is refused; nothing has changed.
            RegistryUnavailableError, OSError: A bundle cannot be copied; nothing has changed.
        """
        plane, loaded = self.loaded.plane, self.loaded
        was_loaded = set(loaded.reports)
        try:
            load_ms = 0.0
            for checkpoint, lanes in answer.items():
                for digest in sorted({lane.bundle for lane in lanes}):
                    # A bundle that has answered at this checkpoint may answer again, whatever its release.
                    known = is_rollback or digest in self._answered_at(checkpoint)
                    floors = {} if known or is_older_fine else loaded.vetting.floors(checkpoint)
                    load_ms += await loaded.load(
                        digest,
                        origins.get(digest),
                        replace(wanted, checkpoint=checkpoint, floors=floors, known=known),
                        is_compared=digest in self._answered(),
                    )
            for digest in sorted(self._evaluating(observe)):
                load_ms += await loaded.load(digest, origins.get(digest), UNMEASURED)
            old = self.now
            before = {name: old.table.checkpoints[name] for name in answer if old.table.checkpoints[name]}
            kept = {name: value for name, value in old.before.items() if name not in answer}
            offered = kept if is_rollback else {**kept, **before}
            version = self.next_version()
            await self.save(replace(old, reserved=version))
            observing = {**old.table.observe, **observe}
            table = LaneTable(
                version,
                {**old.table.checkpoints, **answer},
                {name: lanes for name, lanes in observing.items() if lanes},
            )
            await asyncio.to_thread(plane.swap, table, previous_bundles(offered))
        except BaseException:
            await loaded.unload(set(loaded.reports) - was_loaded)
            await loaded.collect(self.needed())
            raise
        changed_last = () if is_rollback else tuple(before)
        self.now = replace(
            old,
            table=table,
            before=offered,
            changed_last=changed_last if answer else old.changed_last,
            following={**old.following, **following},
            reserved=version,
            pending={name: lanes for name, lanes in old.pending.items() if name not in observe},
        )
        self.tell_if_ready()
        await self.save(self.now)
        await self._note_releases(answer)
        await loaded.keep(self.needed())
        self.events.info(
            "swapped" if answer else "observing",
            lane_table=version,
            checkpoints=shown(answer) if answer else _shown_observers(observe),
            load_ms=round(load_ms, 1),
            **event,
        )
        return Changed(version, load_ms, next(iter(before.values()), ()) if len(answer) == 1 else ())

    def next_version(self) -> int:
        """Return a version that no lane table of this server has had."""
        return max(self.now.table.version, self.now.reserved) + 1

    # --- what is saved ---

    async def save(self, saved: SavedState) -> None:
        """Write the state file. A failure is logged and does not prevent the change."""
        self.now = replace(self.now, reserved=max(self.now.reserved, saved.reserved))
        state = self.loaded.state
        try:
            await asyncio.to_thread(state.write, saved)
        except OSError as error:
            if self.is_saved:
                self.events.error("state_not_saved", error=str(error), path=str(state.path))
            self.is_saved = False
        else:
            self.is_saved = True

    async def save_verdicts(self) -> None:
        """Write the quarantine and the lowest releases. A failure is logged."""
        vetting = self.loaded.vetting
        self.loaded.plane.note_quarantined(len(vetting.quarantine))
        try:
            await asyncio.to_thread(vetting.write)
        except OSError as error:
            self.events.error("vetting_not_saved", error=str(error))

    async def note_broken_glass(
        self, checkpoints: Sequence[str], caller: Caller, reason: str, cause: str
    ) -> None:
        """Record and log that managed checkpoints were changed by someone other than their platform."""
        record = record_of(caller, reason, at_ms=time.time_ns() // 1_000_000, lane_table=self.table.version)
        broken = {**self.now.break_glass, **dict.fromkeys(checkpoints, record)}
        self.now = replace(self.now, break_glass=broken)
        await self.save(self.now)
        for checkpoint in checkpoints:
            self.events.error(
                "break_glass",
                checkpoint=checkpoint,
                managed_by=self.now.managed.get(checkpoint, ""),
                cause=cause,
                by=record.by,
                reason=record.reason,
                lane_table=record.lane_table,
            )

    async def note_following(self, following: Mapping[str, Following]) -> None:
        """Save the targets of aliases. The lane table stays unchanged."""
        if any(self.now.following[name] != value for name, value in following.items()):
            self.now = replace(self.now, following={**self.now.following, **following})
            await self.save(self.now)

    async def pinned(self, checkpoint: str) -> Following:
        """Return a pin at the current target of the alias. The pin ends when the alias moves."""
        alias = self.settings.checkpoints[checkpoint].alias
        try:
            target = await asyncio.to_thread(self.loaded.source.resolve, alias)
            return Following(alias, target.digest, pinned=True)
        except ScorerError:
            # The registry is unavailable: the target that was seen last is used.
            return replace(self.now.following[checkpoint], pinned=True)

    async def _note_releases(self, answer: Mapping[str, Lanes]) -> None:
        risen = [
            self.loaded.vetting.served(name, [self.loaded.reports.get(lane.bundle, {}) for lane in lanes])
            for name, lanes in answer.items()
        ]
        if any(risen):
            await self.save_verdicts()

    # --- which bundles are needed ---

    def needed(self) -> set[str]:
        """Return the bundles that answer, would answer after one rollback, or observe."""
        return (
            self._answered() | self._evaluating(self.now.table.observe) | self._evaluating(self.now.pending)
        )

    def is_evaluated_here(self, lane: Lane) -> bool:
        """Return whether this server, and not the shadow pool, evaluates an observe lane."""
        return not lane.pool or self.is_shadow

    def _answered(self) -> set[str]:
        """Return the bundles that answer now or answered before the last change."""
        return self.now.table.bundles() | bundles_of(self.now.before)

    def _answered_at(self, checkpoint: str) -> set[str]:
        """Return the bundles that answer at a checkpoint now or answered before its last change."""
        return bundles_of(
            {"": self.now.table.checkpoints[checkpoint], " ": self.now.before.get(checkpoint, ())}
        )

    def _evaluating(self, observe: Mapping[str, Lanes]) -> set[str]:
        """Return the bundles of the observe lanes that this server evaluates."""
        return {lane.bundle for lanes in observe.values() for lane in lanes if self.is_evaluated_here(lane)}


def previous_bundles(before: Mapping[str, Lanes]) -> dict[str, str]:
    """Return, for each checkpoint, the bundle with the largest share of its previous lanes."""
    return {name: max(lanes, key=lambda lane: lane.share).bundle for name, lanes in before.items()}


def shown(lanes: Mapping[str, Lanes]) -> dict[str, Any]:
    """Return lanes in the form of log entries: a digest for a single lane, shares for several."""
    return {
        name: value[0].bundle if len(value) == 1 else {f"{e.name} {e.share:g}": e.bundle for e in value}
        for name, value in lanes.items()
    }


def _shown_observers(observe: Mapping[str, Lanes]) -> dict[str, Any]:
    return {
        name: {f"{e.name} {e.sample:g}{' pool' if e.pool else ''}": e.bundle for e in lanes}
        for name, lanes in observe.items()
    }
