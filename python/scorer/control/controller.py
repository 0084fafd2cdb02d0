"""The operations that change the lane table of a server.

Each operation checks the caller and the arguments, and then makes one change (`ActiveLanes.change`).
Following an alias, setting answer lanes and rolling back leave the observe lanes unchanged. This includes an
A/A control, which continues to evaluate the previous bundle until it is set again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scorer.config import CheckpointSettings, Settings
from scorer.control import restore
from scorer.control.active import ActiveLanes, Changed
from scorer.control.dataplane import DataPlane, LoadFor
from scorer.control.lanes import Lane, Lanes, LaneTable, check_apart, check_lanes, check_observers, only
from scorer.control.lists import ExternalLists
from scorer.control.loaded import LoadedBundles
from scorer.control.management import NOBODY, BreakGlass, Caller, breaks_glass
from scorer.control.quarantine import Quarantine
from scorer.control.state import Following, StateDirectory
from scorer.control.vetting import Vetting
from scorer.errors import (
    CheckpointExistsError,
    InvalidLanesError,
    NothingToRestoreError,
    UnknownCheckpointError,
)
from scorer.events import EventLog
from scorer.registry.base import BundleSource, Resolved


class Controller:
    """Owns the lane table. Its methods run on the event loop; calls that block run in threads."""

    def __init__(
        self,
        settings: Settings,
        plane: DataPlane,
        source: BundleSource,
        state: StateDirectory,
        events: EventLog,
    ) -> None:
        self.plane = plane
        self.source = source
        self.state = state
        self.events = events
        self.vetting = Vetting(state.path, settings.bundles)
        self._loaded = LoadedBundles(plane, source, state, self.vetting, events)
        self._active = ActiveLanes(settings, self._loaded, events)
        self.quarantine = Quarantine(self._active)

    @property
    def settings(self) -> Settings:
        """The server's settings, with the checkpoints that were added while it ran."""
        return self._active.settings

    @property
    def table(self) -> LaneTable:
        """The lane table that is active now."""
        return self._active.table

    @property
    def following(self) -> Mapping[str, Following]:
        """The relation of each checkpoint to its alias."""
        return self._active.now.following

    @property
    def managed(self) -> Mapping[str, str]:
        """The platform that manages each managed checkpoint."""
        return self._active.now.managed

    @property
    def break_glass(self) -> Mapping[str, BreakGlass]:
        """The latest change of each managed checkpoint that its platform did not make."""
        return self._active.now.break_glass

    @property
    def load_reports(self) -> Mapping[str, Mapping[str, Any]]:
        """The data plane's report on loading each loaded bundle, by digest."""
        return self._loaded.reports

    @property
    def lists(self) -> ExternalLists:
        """The external lists of the loaded bundles."""
        return self._loaded.lists

    @property
    def role(self) -> str:
        """`live`, or `shadow` for a server of the shadow pool, which observes and does not answer."""
        return self.settings.server.role

    @property
    def is_draining(self) -> bool:
        """Whether the server stops and refuses changes."""
        return self._active.is_draining

    @property
    def ready(self) -> asyncio.Event:
        """Set when every checkpoint of the configuration has lanes."""
        return self._active.ready

    def is_ready(self) -> bool:
        """Return whether every checkpoint of the configuration has lanes. A shadow pool needs none."""
        return self._active.is_ready()

    def missing(self) -> list[str]:
        """Return the checkpoints of the configuration that have no lanes."""
        return self._active.missing()

    def drain(self) -> None:
        """Refuse every change from now on."""
        self._active.is_draining = True

    # --- start ---

    async def restore(self) -> None:
        """Activate the lane table that was active before the start; see `restore.restore`."""
        await restore.restore(self._active)

    async def restore_observers(self) -> None:
        """Activate the observe lanes that were active before the start."""
        await restore.restore_observers(self._active)

    async def load_previous(self) -> None:
        """Load the bundles that a rollback would restore."""
        await restore.load_previous(self._active)

    async def save_if_needed(self) -> None:
        """Write the state file again if that has failed, for example because the disk was full."""
        if not self._active.is_saved:
            async with self._active.lock:
                await self._active.save(self._active.now)

    # --- answer lanes ---

    async def follow(self, checkpoint: str, target: Resolved, *, noticed_at_us: int | None = None) -> Changed:
        """Serve the bundle that the checkpoint's alias points to.

        Args:
            checkpoint: The checkpoint.
            target: What its alias resolves to.
            noticed_at_us: When the move of the alias was detected, in microseconds since the Unix epoch;
                None: now.

        Raises:
            BundleError, LoadError, SwapError: The bundle is refused.
            RegistryUnavailableError, OSError: The bundle could not be copied; another attempt may succeed.
        """
        active = self._active
        async with active.lock:
            active.check_running()
            alias = self.settings.checkpoints[checkpoint].alias
            following = {checkpoint: Following(alias, target.digest)}
            if self.table.checkpoints[checkpoint] == only(target.digest):
                await active.note_following(following)
                return Changed(self.table.version)
            noticed_at_us = time.time_ns() // 1000 if noticed_at_us is None else noticed_at_us
            changed_at_us = None if target.changed_at_ms is None else target.changed_at_ms * 1000
            return await active.change(
                {target.digest: target},
                answer={checkpoint: only(target.digest)},
                following=following,
                event={"cause": f"alias {alias}"},
                wanted=LoadFor(
                    changed_at_us=changed_at_us, noticed_at_us=noticed_at_us, name=alias.partition("@")[0]
                ),
            )

    async def set_lanes(
        self,
        checkpoint: str,
        lanes: Sequence[Lane],
        *,
        reason: str,
        cause: str = "set lanes",
        allow_slower: bool = False,
        allow_rollback: bool = False,
        expected: int | None = None,
        caller: Caller = NOBODY,
    ) -> Changed:
        """Replace the answer lanes of a checkpoint. Every bundle is loaded first; a failure changes nothing.

        Args:
            checkpoint: The checkpoint.
            lanes: The answer lanes; their shares add up to 1.
            reason: Kept in the log.
            cause: Kept in the log.
            allow_slower: Serve a bundle that is slower than the live one by more than the checkpoint's
                `warmup_max_ratio`.
            allow_rollback: Serve a bundle of an older release than this server has served.
            expected: The version of the lane table that the change was decided on; None: not compared.
            caller: On whose behalf.

        Raises:
            StaleLaneTableError: Another table has been activated since `expected`.
            ManagedCheckpointError: A platform manages the checkpoint, and the caller is another one.
            InvalidLanesError, BundleError, LoadError, SwapError: The lanes or a bundle is refused.
        """
        asked_at_us = time.time_ns() // 1000
        active = self._active
        self._check_answering(checkpoint)
        check_lanes(checkpoint, lanes)
        async with active.lock:
            active.check_running()
            active.check_expected(expected)
            broken = breaks_glass(checkpoint, self.managed.get(checkpoint, ""), caller, reason)
            check_apart(checkpoint, lanes, self.table.observe.get(checkpoint, ()))
            wanted, origins = await self._loaded.resolve_lanes(lanes)
            if self.table.checkpoints[checkpoint] == wanted:
                return Changed(self.table.version, previous=wanted)
            alias = self.settings.checkpoints[checkpoint].alias
            if len(lanes) == 1 and lanes[0].bundle == alias:
                # A request for the alias itself is a request to follow it again.
                following = {checkpoint: Following(alias, wanted[0].bundle)}
            else:
                following = {checkpoint: await active.pinned(checkpoint)}
            changed = await active.change(
                origins,
                answer={checkpoint: wanted},
                following=following,
                event={"cause": cause, "reason": reason},
                wanted=LoadFor(noticed_at_us=asked_at_us, allow_slower=allow_slower),
                is_older_fine=allow_rollback,
            )
            if broken:
                await active.note_broken_glass([checkpoint], caller, reason, cause)
            return changed

    async def rollback(
        self, checkpoint: str, *, reason: str, expected: int | None = None, caller: Caller = NOBODY
    ) -> Changed:
        """Restore the lanes before the current ones.

        The lanes that a rollback replaces are not kept: a second rollback cannot restore them, and it is safe
        to repeat a call that timed out.

        Args:
            checkpoint: The checkpoint; empty: every checkpoint that the last change affected.
            reason: Kept in the log.
            expected: The version of the lane table that the rollback was decided on; None: not compared.
            caller: On whose behalf.

        Raises:
            NothingToRestoreError: There are no earlier lanes.
            StaleLaneTableError: Another table has been activated since `expected`.
            ManagedCheckpointError: A platform manages a checkpoint, and the caller is another one.
        """
        active = self._active
        if checkpoint:
            self._check_answering(checkpoint)
        async with active.lock:
            active.check_running()
            active.check_expected(expected)
            names = [checkpoint] if checkpoint else list(active.now.changed_last)
            restored = {name: active.now.before[name] for name in names if name in active.now.before}
            if not restored:
                what = f'checkpoint "{checkpoint}"' if checkpoint else "the lane table"
                raise NothingToRestoreError(
                    f"{what} has no earlier lanes to go back to; name a bundle with `scorer swap`"
                )
            broken = [n for n in restored if breaks_glass(n, self.managed.get(n, ""), caller, reason)]
            following = {name: await active.pinned(name) for name in restored}
            changed = await active.change(
                {},
                answer=restored,
                following=following,
                event={"cause": "rollback", "reason": reason},
                is_rollback=True,
                # A rollback is never refused because the restored bundle is slower.
                wanted=LoadFor(noticed_at_us=time.time_ns() // 1000, allow_slower=True),
            )
            if broken:
                await active.note_broken_glass(broken, caller, reason, "rollback")
            return changed

    # --- observe lanes ---

    async def set_observers(
        self, checkpoint: str, lanes: Sequence[Lane], *, reason: str, expected: int | None = None
    ) -> Changed:
        """Replace the observe lanes of a checkpoint. The answer lanes stay unchanged.

        Every bundle is loaded first; a failure changes nothing. No bundle is refused because it is slow: an
        observe lane is how its speed is determined.

        Args:
            checkpoint: The checkpoint.
            lanes: The observe lanes; empty: none.
            reason: Kept in the log.
            expected: The version of the lane table that the change was decided on; None: not compared.

        Raises:
            StaleLaneTableError: Another table has been activated since `expected`.
            InvalidLanesError, BundleError, LoadError, SwapError: The lanes or a bundle is refused.
        """
        active = self._active
        self._check_known(checkpoint)
        check_observers(checkpoint, lanes)
        async with active.lock:
            active.check_running()
            active.check_expected(expected)
            answer = self.table.checkpoints[checkpoint]
            # The name of an observe lane must not prevent a rollback either.
            check_apart(checkpoint, [*answer, *active.now.before.get(checkpoint, ())], lanes)
            if any(lane.filter for lane in lanes):
                check_observers(checkpoint, lanes, features=await self._features(answer))
            wanted, origins = await self._loaded.resolve_lanes(lanes)
            wanted = await self._with_reads(wanted, origins)
            before = self.table.observe.get(checkpoint, ())
            if before == wanted and checkpoint not in active.now.pending:
                return Changed(self.table.version, previous=wanted)
            changed = await active.change(
                origins, observe={checkpoint: wanted}, event={"cause": "set observers", "reason": reason}
            )
            return replace(changed, previous=before)

    async def _with_reads(self, lanes: Lanes, origins: Mapping[str, Resolved]) -> Lanes:
        """Return the lanes, with the features that the bundles of the shadow pool read."""
        made = []
        for lane in lanes:
            if self._active.is_evaluated_here(lane):
                made.append(lane)
                continue
            made.append(await self._loaded.with_reads(lane, origins[lane.bundle]))
            # The pool has its own copy of the bundle, so the copy of this server is deleted.
            await self._loaded.collect(self._active.needed())
        return tuple(made)

    async def _features(self, answer: Lanes) -> set[str] | None:
        """Return the features that the bundle with the largest share reads; None if they are not known."""
        if not answer:
            return None
        return await asyncio.to_thread(
            self._loaded.features_of, max(answer, key=lambda lane: lane.share).bundle
        )

    # --- checkpoints ---

    async def add_checkpoint(
        self, name: str, settings: CheckpointSettings, *, by: str, reason: str
    ) -> tuple[int, bool]:
        """Add a checkpoint. It has no lanes yet; the lanes of other checkpoints stay unchanged.

        Args:
            name: The checkpoint.
            settings: Its settings.
            by: Who adds it, for the log.
            reason: Kept in the log.

        Returns:
            The version of the lane table, and whether the checkpoint is new. A repeated call has no effect.

        Raises:
            CheckpointExistsError: A checkpoint of this name has other settings.
            ConfigError: The data plane refuses the settings.
        """
        active = self._active
        async with active.lock:
            active.check_running()
            known = None if name in active.now.removed else self.settings.checkpoints.get(name)
            if known == settings:
                return self.table.version, False
            if known is not None:
                raise CheckpointExistsError(
                    f'checkpoint "{name}" exists with other settings; choose another name, or change '
                    "scorer.toml and restart the server"
                )
            await asyncio.to_thread(self.plane.add_checkpoint, name, settings)
            active.take_in(name, settings)
            await active.save(active.now)
            self.events.info(
                "checkpoint_added",
                checkpoint=name,
                kind=settings.kind,
                alias=settings.alias,
                by=by,
                reason=reason,
            )
            return self.table.version, True

    async def remove_checkpoint(self, name: str, *, caller: Caller, reason: str) -> int:
        """End all lanes of a checkpoint that was added; the next start does not add it again.

        Args:
            name: The checkpoint.
            caller: On whose behalf.
            reason: Kept in the log.

        Returns:
            The version of the lane table.

        Raises:
            CheckpointExistsError: The checkpoint is one of the configuration.
            ManagedCheckpointError: A platform manages the checkpoint, and the caller is another one.
        """
        active = self._active
        self._check_known(name)
        async with active.lock:
            active.check_running()
            if name not in active.now.added:
                raise CheckpointExistsError(
                    f'checkpoint "{name}" is set in scorer.toml; delete its table and restart the server'
                )
            broken = breaks_glass(name, self.managed.get(name, ""), caller, reason)
            changed = await active.change(
                {},
                answer={name: ()},
                observe={name: ()},
                event={"cause": "remove checkpoint", "reason": reason},
            )
            if broken:
                await active.note_broken_glass([name], caller, reason, "remove checkpoint")
            # Without an alias the checkpoint does not get lanes again.
            active.set_settings(name, self.settings.checkpoints[name].model_copy(update={"alias": ""}))
            active.now = replace(
                active.now,
                before={one: lanes for one, lanes in active.now.before.items() if one != name},
                removed=tuple(dict.fromkeys((*active.now.removed, name))),
                following={**active.now.following, name: Following("")},
                managed={one: by for one, by in active.now.managed.items() if one != name},
            )
            await active.save(active.now)
            return changed.version

    async def manage(self, checkpoint: str, platform: str, *, caller: Caller, reason: str) -> int:
        """Mark a checkpoint as managed by a platform.

        Args:
            checkpoint: The checkpoint.
            platform: Its manager from now on; empty: none. The alias is then followed from its next move on.
            caller: The platform itself, or a person who breaks the glass.
            reason: Kept in the log.

        Returns:
            The version of the lane table, which stays unchanged.

        Raises:
            ManagedCheckpointError: Another platform manages it, and the caller does not break the glass.
        """
        active = self._active
        self._check_known(checkpoint)
        async with active.lock:
            active.check_running()
            before = self.managed.get(checkpoint, "")
            if before == platform:
                return self.table.version
            broken = breaks_glass(checkpoint, before, caller, reason)
            managed = {name: value for name, value in self.managed.items() if name != checkpoint}
            if platform:
                managed[checkpoint] = platform
            pinned = await active.pinned(checkpoint)
            active.now = replace(
                active.now, managed=managed, following={**active.now.following, checkpoint: pinned}
            )
            await active.save(active.now)
            self.events.info(
                "managed" if platform else "not_managed",
                checkpoint=checkpoint,
                platform=platform or before,
                by=caller.by,
            )
            if broken:
                await active.note_broken_glass([checkpoint], caller, reason, "management")
            return self.table.version

    # --- checks ---

    def _check_known(self, checkpoint: str) -> None:
        if checkpoint not in self.settings.checkpoints:
            from scorer.config.problems import nearest

            raise UnknownCheckpointError(
                f'no checkpoint "{checkpoint}"; {nearest(checkpoint, self.settings.checkpoints)}'
            )

    def _check_answering(self, checkpoint: str) -> None:
        self._check_known(checkpoint)
        if self.role == "shadow":
            raise InvalidLanesError(
                f'checkpoint "{checkpoint}": this server is of the shadow pool and answers nobody; set lanes '
                "at a live server, observe lanes here"
            )
