"""The one place where the lane table changes.

Order of every change: copy the bundles in → verify, load, warm → reserve a version on disk →
swap → remember → unload what nothing needs. A failure before the swap leaves no trace in
what is served. One lock makes changes wait for each other.

Observe lanes are set apart from answer lanes: following an alias, setting lanes and rolling back
keep them as they are, also a control lane that observes with what answered until then; whoever
wants it to follow sets it again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scorer.config import CheckpointSettings, Settings
from scorer.control import added
from scorer.control.dataplane import DataPlane, LoadFor
from scorer.control.lanes import (
    Lane,
    Lanes,
    LaneTable,
    bundles_of,
    check_apart,
    check_lanes,
    check_observers,
    only,
)
from scorer.control.management import NOBODY, BreakGlass, Caller, breaks_glass, record_of
from scorer.control.state import Following, SavedState, StateDirectory, StateError
from scorer.control.vetting import Vetting, VettingError
from scorer.control.withdrawal import without
from scorer.errors import (
    BundleError,
    CheckpointExistsError,
    ControlUnavailableError,
    InvalidLanesError,
    LoadError,
    NothingToRestoreError,
    RegistryUnavailableError,
    ScorerError,
    StaleLaneTableError,
    UnknownCheckpointError,
)
from scorer.events import EventLog
from scorer.registry.base import BundleSource, Resolved
from scorer.registry.reference import DigestReference, full_digest, parse_reference, pick_digest

# Observing has no SLA: nothing is measured from here on, and no speed is rejected.
_UNMEASURED = LoadFor()
# A copy that was served before, brought in again after a start.
_KNOWN = LoadFor(known=True)


@dataclass(frozen=True, slots=True)
class Changed:
    """The result of a change."""

    version: int
    load_ms: float = 0.0
    previous: Lanes = ()


class Controller:
    """Owns the lane table. Its methods run on the event loop; what blocks runs in threads."""

    def __init__(
        self,
        settings: Settings,
        plane: DataPlane,
        source: BundleSource,
        state: StateDirectory,
        events: EventLog,
    ) -> None:
        self.settings = settings
        self.plane = plane
        self.source = source
        self.state = state
        self.events = events
        self.vetting = Vetting(state.path, settings.bundles)
        self.draining = False
        self.load_reports: dict[str, Mapping[str, Any]] = {}
        """By digest: what loading said, for every bundle that is loaded."""
        self.saved = True
        """Whether the state file holds what is served."""
        self.ready = asyncio.Event()
        """Set once every checkpoint has something to serve."""
        self._lock = asyncio.Lock()
        self._stuck_with: set[str] = set()
        """Failing bundles that nothing can replace, for telling it once."""
        self._now = SavedState(
            LaneTable(0, dict.fromkeys(settings.checkpoints, ())),
            following={name: Following(c.alias) for name, c in settings.checkpoints.items()},
        )

    @property
    def table(self) -> LaneTable:
        """The lane table that is active now."""
        return self._now.table

    @property
    def following(self) -> Mapping[str, Following]:
        """How each checkpoint relates to its alias."""
        return self._now.following

    @property
    def managed(self) -> Mapping[str, str]:
        """By checkpoint: the platform that manages it."""
        return self._now.managed

    @property
    def break_glass(self) -> Mapping[str, BreakGlass]:
        """By checkpoint: the latest change that its platform did not make."""
        return self._now.break_glass

    @property
    def role(self) -> str:
        """`live`, or `shadow`: a server of the shadow pool, which observes and answers nobody."""
        return self.settings.server.role

    def is_ready(self) -> bool:
        """Whether every checkpoint of the configuration has lanes. A shadow pool needs none.

        Checkpoints that were added while the server ran do not count: they never hold back the others.
        """
        return self.role == "shadow" or not self.missing()

    def missing(self) -> list[str]:
        """Return the checkpoints of the configuration that have no lanes."""
        checkpoints = self.table.checkpoints.items()
        return [name for name, lanes in checkpoints if not lanes and name not in self._now.added]

    # --- boot ---

    async def restore(self) -> None:
        """Serves the last known good table, as far as it can be loaded and is still configured.

        What observed waits for `restore_observers`: answering comes first.
        """
        try:
            last = await asyncio.to_thread(self.state.read)
        except StateError as error:
            self.events.error("state_unreadable", error=str(error))
            last = None
        await self._read_vetting()
        self._tell_if_ready()
        is_shadow = self.role == "shadow"
        if last is None and is_shadow:
            # It is there before it has anything to observe; health says so once a table is in force.
            last = self._now
        if last is None:
            return
        async with self._lock:
            await self._add_again({k: v for k, v in last.added.items() if k not in last.removed})
            observed = {**last.table.observe, **last.pending}
            # Versions go on from where they were, whatever becomes of the table.
            self._now = replace(
                self._now,
                reserved=max(last.reserved, last.table.version),
                pending={
                    name: lanes for name, lanes in observed.items() if name in self.settings.checkpoints
                },
                managed={k: v for k, v in last.managed.items() if k in self.settings.checkpoints},
                break_glass={k: v for k, v in last.break_glass.items() if k in self.settings.checkpoints},
            )
            wanted = {
                name: lanes
                for name, lanes in last.table.checkpoints.items()
                if name in self.settings.checkpoints and not is_shadow
            }
            usable = dict(
                zip(wanted, await asyncio.gather(*map(self._loads, wanted, wanted.values())), strict=True)
            )
            lanes = {
                name: wanted.get(name, ()) if usable.get(name) else () for name in self.settings.checkpoints
            }
            is_same = lanes == dict(last.table.checkpoints) and not last.table.observe and not is_shadow
            table = LaneTable(last.table.version if is_same else self._next_version(), lanes)
            if not any(lanes.values()) and not is_shadow:
                return
            try:
                await asyncio.to_thread(self.plane.swap, table)
            except ScorerError as error:
                self.events.error("last_known_good_refused", error=str(error))
                return
            self._now = replace(
                self._now,
                table=table,
                before={name: b for name, b in last.before.items() if lanes.get(name)},
                changed_last=tuple(name for name in last.changed_last if lanes.get(name)),
                following={name: self._restored(name, last.following.get(name)) for name in lanes},
            )
            self._tell_if_ready()
            self.events.info("restored", lane_table=table.version, checkpoints=_shown(lanes))

    async def _add_again(self, known: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the checkpoints that were added before the start. The configuration decides on its own ones."""
        for name, document in known.items():
            if name in self.settings.checkpoints:
                self.events.info("checkpoint_configured", checkpoint=name)
                continue
            try:
                settings = added.check(name, document, role=self.role)
                await asyncio.to_thread(self.plane.add_checkpoint, name, settings)
            except ScorerError as error:
                self.events.error("checkpoint_left_out", checkpoint=name, error=str(error))
            else:
                self._take_in(name, settings)

    def _take_in(self, name: str, settings: CheckpointSettings) -> None:
        """Make a checkpoint that the data plane has one of the controller's own."""
        self._set_settings(name, settings)
        table = replace(self.table, checkpoints={**self.table.checkpoints, name: ()})
        document = settings.model_dump(mode="json", exclude_defaults=True)
        self._now = replace(
            self._now,
            table=table,
            following={**self._now.following, name: Following(settings.alias)},
            added={**self._now.added, name: document},
            removed=tuple(one for one in self._now.removed if one != name),
        )

    async def restore_observers(self) -> None:
        """Observes again, after a start, with what observed before; says what it leaves out, and why."""
        async with self._lock:
            if not self._now.pending:
                return
            for checkpoint, lanes in self._now.pending.items():
                kept = tuple([lane for lane in lanes if await self._observes(checkpoint, lane)])
                try:
                    if kept:
                        await self._change({}, observe={checkpoint: kept}, event={"cause": "restart"})
                except (ScorerError, OSError) as error:
                    for lane in kept:
                        self._leave_out(checkpoint, lane, error)
            self._now = replace(self._now, pending={})
            await self._remember(self._now)
            await self._tidy()

    async def _observes(self, checkpoint: str, lane: Lane) -> bool:
        """Loads the bundle of a lane that observed; says why where it cannot."""
        if not self._evaluated_here(lane):
            return True
        try:
            try:
                origin = await asyncio.to_thread(self.source.resolve, lane.bundle)
            except ScorerError:
                origin = None  # the own copy has to do
            await self._stage_and_load(lane.bundle, origin, _UNMEASURED)
        except (ScorerError, OSError) as error:
            self._leave_out(checkpoint, lane, error)
            return False
        return True

    def _leave_out(self, checkpoint: str, lane: Lane, error: Exception) -> None:
        self.events.error(
            "observer_left_out", checkpoint=checkpoint, lane=lane.name, bundle=lane.bundle, error=str(error)
        )

    async def load_previous(self) -> None:
        """Loads the bundles before the live ones again after a start, so that a rollback is instant again.

        Requests are served meanwhile, and where a bundle cannot be loaded a rollback loads its copy.
        """
        async with self._lock:
            missing = bundles_of(self._now.before) - self.load_reports.keys()
            for digest in sorted(missing):
                try:
                    await self._load_copy(digest)
                except (ScorerError, OSError) as error:
                    self.events.warning("previous_not_loaded", bundle=digest, error=str(error))
            if missing & self.load_reports.keys():
                try:
                    await asyncio.to_thread(self.plane.swap, self.table, _previous(self._now.before))
                except ScorerError as error:
                    self.events.warning("previous_not_offered", error=str(error))

    async def _loads(self, checkpoint: str, lanes: Lanes) -> bool:
        """Loads the own copies behind some lanes; says why where it cannot."""
        try:
            for lane in lanes:
                await self._load_copy(lane.bundle)
        except (ScorerError, OSError) as error:
            self.events.error("last_known_good_refused", checkpoint=checkpoint, error=str(error))
            return False
        return bool(lanes)

    def _restored(self, checkpoint: str, last: Following | None) -> Following:
        alias = self.settings.checkpoints[checkpoint].alias
        # Another alias in the settings is a new instruction: it ends a pin.
        return last if last is not None and last.alias == alias else Following(alias)

    # --- changes ---

    async def follow(self, checkpoint: str, target: Resolved, *, noticed_at_us: int | None = None) -> Changed:
        """Serves what the checkpoint's alias points to, seen to have moved at `noticed_at_us` (Unix epoch).

        Raises:
            BundleError, LoadError, SwapError: The candidate is refused.
            RegistryUnavailableError, OSError: It could not be copied; worth another try.
        """
        async with self._lock:
            self._check_running()
            alias = self.settings.checkpoints[checkpoint].alias
            following = {checkpoint: Following(alias, target.digest)}
            if self.table.checkpoints[checkpoint] == only(target.digest):
                await self._note(following)
                return Changed(self.table.version)
            noticed_at_us = time.time_ns() // 1000 if noticed_at_us is None else noticed_at_us
            changed_at_us = None if target.changed_at_ms is None else target.changed_at_ms * 1000
            return await self._change(
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
        """Serve these lanes. Every bundle is loaded first; on any failure nothing changes.

        Args:
            checkpoint: Where.
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
        """
        asked_at_us = time.time_ns() // 1000
        self._check_checkpoint(checkpoint)
        self._check_answers(checkpoint)
        check_lanes(checkpoint, lanes)
        async with self._lock:
            self._check_running()
            self._check_expected(expected)
            broken = breaks_glass(checkpoint, self.managed.get(checkpoint, ""), caller, reason)
            check_apart(checkpoint, lanes, self.table.observe.get(checkpoint, ()))
            wanted, origins = await self._resolved(lanes)
            if self.table.checkpoints[checkpoint] == wanted:
                return Changed(self.table.version, previous=wanted)
            alias = self.settings.checkpoints[checkpoint].alias
            if len(lanes) == 1 and lanes[0].bundle == alias:
                # Asking for the very alias is asking to follow it again.
                following = {checkpoint: Following(alias, wanted[0].bundle)}
            else:
                following = {checkpoint: await self._pinned(checkpoint)}
            changed = await self._change(
                origins,
                answer={checkpoint: wanted},
                following=following,
                event={"cause": cause, "reason": reason},
                wanted=LoadFor(noticed_at_us=asked_at_us, allow_slower=allow_slower),
                is_older_fine=allow_rollback,
            )
            if broken:
                await self._note_broken_glass([checkpoint], caller, reason, cause)
            return changed

    def _set_settings(self, name: str, settings: CheckpointSettings) -> None:
        checkpoints = {**self.settings.checkpoints, name: settings}
        self.settings = self.settings.model_copy(update={"checkpoints": checkpoints})

    async def add_checkpoint(
        self, name: str, settings: CheckpointSettings, *, by: str, reason: str
    ) -> tuple[int, bool]:
        """Add a checkpoint. It has no lanes yet; the ones of the other checkpoints stay unchanged.

        Args:
            name: The checkpoint.
            settings: Its settings.
            by: Who adds it, for the log.
            reason: Kept in the log.

        Returns:
            The version of the lane table, and whether the checkpoint is new. The same again has no effect.

        Raises:
            CheckpointExistsError: A checkpoint of this name has other settings.
            ConfigError: The data plane refuses the settings.
        """
        async with self._lock:
            self._check_running()
            known = None if name in self._now.removed else self.settings.checkpoints.get(name)
            if known == settings:
                return self.table.version, False
            if known is not None:
                raise CheckpointExistsError(
                    f'checkpoint "{name}" exists with other settings; choose another name, or change '
                    "scorer.toml and restart the server"
                )
            await asyncio.to_thread(self.plane.add_checkpoint, name, settings)
            self._take_in(name, settings)
            await self._remember(self._now)
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
        """End all lanes of a checkpoint that was added, and forget it at the next start.

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
        self._check_checkpoint(name)
        async with self._lock:
            self._check_running()
            if name not in self._now.added:
                raise CheckpointExistsError(
                    f'checkpoint "{name}" is set in scorer.toml; delete its table and restart the server'
                )
            broken = breaks_glass(name, self.managed.get(name, ""), caller, reason)
            changed = await self._change(
                {},
                answer={name: ()},
                observe={name: ()},
                event={"cause": "remove checkpoint", "reason": reason},
            )
            if broken:
                await self._note_broken_glass([name], caller, reason, "remove checkpoint")
            # Without an alias nothing brings it lanes again.
            self._set_settings(name, self.settings.checkpoints[name].model_copy(update={"alias": ""}))
            self._now = replace(
                self._now,
                before={one: lanes for one, lanes in self._now.before.items() if one != name},
                removed=tuple(dict.fromkeys((*self._now.removed, name))),
                following={**self._now.following, name: Following("")},
                managed={one: by for one, by in self._now.managed.items() if one != name},
            )
            await self._remember(self._now)
            return changed.version

    async def set_observers(
        self, checkpoint: str, lanes: Sequence[Lane], *, reason: str, expected: int | None = None
    ) -> Changed:
        """Observe with these lanes; none of them ends observing. What answers is not touched.

        Every bundle is loaded first; on any failure nothing changes. How fast it is does not matter
        here: observing is how that is found out.
        """
        self._check_checkpoint(checkpoint)
        check_observers(checkpoint, lanes)
        async with self._lock:
            self._check_running()
            self._check_expected(expected)
            answer = self.table.checkpoints[checkpoint]
            # A rollback must not be barred by a name either.
            check_apart(checkpoint, [*answer, *self._now.before.get(checkpoint, ())], lanes)
            if any(lane.filter for lane in lanes):
                check_observers(checkpoint, lanes, features=await asyncio.to_thread(self._features, answer))
            wanted, origins = await self._resolved(lanes)
            wanted = tuple(
                [
                    lane if self._evaluated_here(lane) else await self._with_reads(lane, origins[lane.bundle])
                    for lane in wanted
                ]
            )
            before = self.table.observe.get(checkpoint, ())
            if before == wanted and checkpoint not in self._now.pending:
                return Changed(self.table.version, previous=wanted)
            changed = await self._change(
                origins, observe={checkpoint: wanted}, event={"cause": "set observers", "reason": reason}
            )
            return replace(changed, previous=before)

    async def rollback(
        self, checkpoint: str, *, reason: str, expected: int | None = None, caller: Caller = NOBODY
    ) -> Changed:
        """Restores the lanes before the current ones: of one checkpoint, or (empty name) of the last change.

        What was rolled back cannot come back by a second rollback: repeating a call that timed out is safe.
        """
        if checkpoint:
            self._check_checkpoint(checkpoint)
            self._check_answers(checkpoint)
        async with self._lock:
            self._check_running()
            self._check_expected(expected)
            names = [checkpoint] if checkpoint else list(self._now.changed_last)
            restored = {name: self._now.before[name] for name in names if name in self._now.before}
            if not restored:
                what = f'checkpoint "{checkpoint}"' if checkpoint else "the lane table"
                raise NothingToRestoreError(
                    f"{what} has no earlier lanes to go back to; name a bundle with `scorer swap`"
                )
            broken = [n for n in restored if breaks_glass(n, self.managed.get(n, ""), caller, reason)]
            following = {name: await self._pinned(name) for name in restored}
            changed = await self._change(
                {},
                answer=restored,
                following=following,
                event={"cause": "rollback", "reason": reason},
                is_rollback=True,
                # A rollback is never refused because the restored bundle is slower.
                wanted=LoadFor(noticed_at_us=time.time_ns() // 1000, allow_slower=True),
            )
            if broken:
                await self._note_broken_glass(broken, caller, reason, "rollback")
            return changed

    async def withdraw(self, digest: str, *, by: str, reason: str) -> tuple[str, ...]:
        """Put a bundle into quarantine and end its lanes, where another bundle can take over.

        Where it shares a checkpoint the other lanes take its traffic; where it answers alone, the lanes
        before.

        Returns:
            The checkpoints at which it goes on answering, since no other bundle is known there.

        Raises:
            VettingError: The quarantine is full.
        """
        async with self._lock:
            self._check_running()
            return await self._withdraw(digest, by=by, reason=reason)

    async def digest_of(self, reference: str) -> str:
        """The digest that a reference stands for; one that is written out need not be in the registry."""
        full = full_digest(reference)
        if full is not None:
            return f"sha256:{full}"
        parsed = parse_reference(reference)
        if isinstance(parsed, DigestReference):
            prefix = f"sha256:{parsed.prefix}"
            found = [digest for digest in self.vetting.quarantine if digest.startswith(prefix)]
            if len(found) == 1:
                return found[0]
        return (await asyncio.to_thread(self._resolve, reference)).digest

    async def release(self, digest: str, *, by: str, reason: str) -> bool:
        """Lift the quarantine of a bundle; False if there is none."""
        async with self._lock:
            if not self.vetting.remove(digest):
                return False
            await self._write_vetting()
            self.events.warning("quarantine_lifted", bundle=digest, by=by, reason=reason)
            return True

    async def withdraw_failing(self) -> None:
        """Withdraw every bundle that its breaker has taken out of service, where another can take over."""
        status = await asyncio.to_thread(self.plane.status)
        for entry in status.get("bundles", ()):
            digest = str(entry.get("digest"))
            if entry.get("breaker", "closed") == "closed":
                self._stuck_with.discard(digest)
                continue
            async with self._lock:
                is_replaceable = any(self._replacement(name, digest) for name in self.table.checkpoints)
                if is_replaceable and digest not in self.vetting.quarantine and not self.draining:
                    await self._withdraw(digest, by="breaker", reason="it panicked or gave no finite answer")
                elif digest in self.table.bundles() and digest not in self._stuck_with:
                    self._stuck_with.add(digest)
                    self.events.error("not_withdrawn", bundle=digest, error="no other bundle can take over")

    async def manage(self, checkpoint: str, platform: str, *, caller: Caller, reason: str) -> int:
        """Mark a checkpoint as managed by a platform; the version of the lane table, which stays.

        Args:
            checkpoint: Where.
            platform: Its manager from now on; empty: none. The alias is then followed from its next move on.
            caller: The platform itself, or a person who breaks the glass.
            reason: Kept in the log.

        Raises:
            ManagedCheckpointError: Another platform manages it, and the caller does not break the glass.
        """
        self._check_checkpoint(checkpoint)
        async with self._lock:
            self._check_running()
            before = self.managed.get(checkpoint, "")
            if before == platform:
                return self.table.version
            broken = breaks_glass(checkpoint, before, caller, reason)
            managed = {name: value for name, value in self.managed.items() if name != checkpoint}
            if platform:
                managed[checkpoint] = platform
            pinned = await self._pinned(checkpoint)
            self._now = replace(
                self._now, managed=managed, following={**self._now.following, checkpoint: pinned}
            )
            await self._remember(self._now)
            self.events.info(
                "managed" if platform else "not_managed",
                checkpoint=checkpoint,
                platform=platform or before,
                by=caller.by,
            )
            if broken:
                await self._note_broken_glass([checkpoint], caller, reason, "management")
            return self.table.version

    async def save_if_needed(self) -> None:
        """Tries again to write the state file where that failed (a full disk, for instance)."""
        if not self.saved:
            async with self._lock:
                await self._remember(self._now)

    # --- inside: everything below runs under the lock ---

    async def _read_vetting(self) -> None:
        try:
            await asyncio.to_thread(self.vetting.read)
        except VettingError as error:
            self.events.error("vetting_unreadable", error=str(error))
        self.plane.note_quarantined(len(self.vetting.quarantine))

    async def _write_vetting(self) -> None:
        self.plane.note_quarantined(len(self.vetting.quarantine))
        try:
            await asyncio.to_thread(self.vetting.write)
        except OSError as error:
            self.events.error("vetting_not_saved", error=str(error))

    def _replacement(self, checkpoint: str, digest: str) -> Lanes:
        """What can answer at a checkpoint in place of a bundle; empty: nothing, or it does not answer."""
        answering = self.table.checkpoints[checkpoint]
        if all(lane.bundle != digest for lane in answering):
            return ()
        return without(answering, digest) or without(self._now.before.get(checkpoint, ()), digest)

    async def _withdraw(self, digest: str, *, by: str, reason: str) -> tuple[str, ...]:
        answer = {
            name: lanes for name in self.table.checkpoints if (lanes := self._replacement(name, digest))
        }
        observe = {
            name: tuple(lane for lane in lanes if lane.bundle != digest)
            for name, lanes in self.table.observe.items()
            if any(lane.bundle == digest for lane in lanes)
        }
        if self.vetting.add(digest, by=by, reason=reason):
            await self._write_vetting()
            self.events.error("quarantined", bundle=digest, by=by, reason=reason)
        if answer or observe:
            caller = Caller(break_glass=True, by=by)
            broken = [n for n in answer if breaks_glass(n, self.managed.get(n, ""), caller, reason)]
            await self._change(
                {},
                answer=answer,
                observe=observe,
                following={name: await self._pinned(name) for name in answer},
                event={"cause": "quarantine", "reason": reason},
                is_rollback=True,
                wanted=LoadFor(noticed_at_us=time.time_ns() // 1000, allow_slower=True),
            )
            if broken:
                await self._note_broken_glass(broken, caller, reason, "quarantine")
        return tuple(
            name
            for name, lanes in self.table.checkpoints.items()
            if any(lane.bundle == digest for lane in lanes)
        )

    def _check_expected(self, expected: int | None) -> None:
        if expected is not None and expected != self.table.version:
            raise StaleLaneTableError(
                f"the lane table is {self.table.version} now, and the change was decided on {expected}; "
                "read the status and decide again"
            )

    async def _note_broken_glass(
        self, checkpoints: Sequence[str], caller: Caller, reason: str, cause: str
    ) -> None:
        record = record_of(caller, reason, at_ms=time.time_ns() // 1_000_000, lane_table=self.table.version)
        self._now = replace(
            self._now, break_glass={**self._now.break_glass, **dict.fromkeys(checkpoints, record)}
        )
        await self._remember(self._now)
        for checkpoint in checkpoints:
            self.events.error(
                "break_glass",
                checkpoint=checkpoint,
                managed_by=self.managed.get(checkpoint, ""),
                cause=cause,
                by=record.by,
                reason=record.reason,
                lane_table=record.lane_table,
            )

    async def _change(
        self,
        origins: Mapping[str, Resolved],
        *,
        answer: Mapping[str, Lanes] = MappingProxyType({}),
        observe: Mapping[str, Lanes] = MappingProxyType({}),
        following: Mapping[str, Following] = MappingProxyType({}),
        event: Mapping[str, Any],
        wanted: LoadFor = _UNMEASURED,
        is_rollback: bool = False,
        is_older_fine: bool = False,
    ) -> Changed:
        """Makes a new table in which some checkpoints have other lanes."""
        was_loaded = set(self.load_reports)
        try:
            load_ms = 0.0
            for checkpoint, lanes in answer.items():
                for digest in sorted({lane.bundle for lane in lanes}):
                    # What has answered here may answer again; a rollback restores just that.
                    known = is_rollback or digest in self._answered_at(checkpoint)
                    floors = {} if known or is_older_fine else self.vetting.floors(checkpoint)
                    load_ms += await self._stage_and_load(
                        digest,
                        origins.get(digest),
                        replace(wanted, checkpoint=checkpoint, floors=floors, known=known),
                    )
            for digest in sorted(self._evaluating(observe)):
                load_ms += await self._stage_and_load(digest, origins.get(digest), _UNMEASURED)
            old = self._now
            before = {name: old.table.checkpoints[name] for name in answer if old.table.checkpoints[name]}
            kept = {name: value for name, value in old.before.items() if name not in answer}
            offered = kept if is_rollback else {**kept, **before}
            version = self._next_version()
            await self._remember(replace(old, reserved=version))
            observing = {**old.table.observe, **observe}
            table = LaneTable(
                version,
                {**old.table.checkpoints, **answer},
                {name: lanes for name, lanes in observing.items() if lanes},
            )
            await asyncio.to_thread(self.plane.swap, table, _previous(offered))
        except BaseException:
            await self._let_go(set(self.load_reports) - was_loaded)
            await asyncio.to_thread(self._collect, self._needed())
            raise
        changed_last = () if is_rollback else tuple(before)
        self._now = replace(
            old,
            table=table,
            before=offered,
            changed_last=changed_last if answer else old.changed_last,
            following={**old.following, **following},
            reserved=version,
            pending={name: lanes for name, lanes in old.pending.items() if name not in observe},
        )
        self._tell_if_ready()
        await self._remember(self._now)
        await self._note_releases(answer)
        await self._tidy()
        self.events.info(
            "swapped" if answer else "observing",
            lane_table=version,
            checkpoints=_shown(answer) if answer else _shown_observers(observe),
            load_ms=round(load_ms, 1),
            **event,
        )
        return Changed(version, load_ms, next(iter(before.values()), ()) if len(answer) == 1 else ())

    def _answered_at(self, checkpoint: str) -> set[str]:
        """The bundles that answer at a checkpoint, or did before its last change."""
        now = self._now
        return bundles_of({"": now.table.checkpoints[checkpoint], " ": now.before.get(checkpoint, ())})

    async def _note_releases(self, answer: Mapping[str, Lanes]) -> None:
        risen = [
            self.vetting.served(name, [self.load_reports.get(lane.bundle, {}) for lane in lanes])
            for name, lanes in answer.items()
        ]
        if any(risen):
            await self._write_vetting()

    async def _resolved(self, lanes: Sequence[Lane]) -> tuple[Lanes, dict[str, Resolved]]:
        """The lanes with digests for references, and where those bundles come from."""
        found = [await asyncio.to_thread(self._resolve, lane.bundle) for lane in lanes]
        digests = tuple(
            replace(lane, bundle=target.digest) for lane, target in zip(lanes, found, strict=True)
        )
        return digests, {target.digest: target for target in found}

    async def _stage_and_load(self, digest: str, origin: Resolved | None, wanted: LoadFor) -> float:
        """Loads a bundle from the own copy, made first where there is none; the milliseconds it took."""
        self.vetting.check(digest)
        if digest in self.load_reports:
            if await asyncio.to_thread(self._is_loaded, digest):
                if wanted.checkpoint is not None and digest not in self._answered():
                    # It came in to observe: it is yet to be compared with what answers.
                    await asyncio.to_thread(self.plane.load, self.state.bundle(digest), digest, wanted)
                return 0.0
            # The data plane let it go for want of memory.
            del self.load_reports[digest]
        started = asyncio.get_running_loop().time()
        had_copy = self.state.bundle(digest).is_dir()
        try:
            if had_copy or origin is None:
                await self._load_copy(digest, wanted)
            else:
                await self._bring_in(digest, origin, wanted)
        except (LoadError, BundleError):
            await asyncio.to_thread(self.state.discard, digest)
            if not had_copy or origin is None:
                raise
            # The copy was damaged since it was made; the original may be sound.
            await self._bring_in(digest, origin, wanted)
        return (asyncio.get_running_loop().time() - started) * 1e3

    async def _bring_in(self, digest: str, origin: Resolved, wanted: LoadFor) -> None:
        """Copies a bundle and loads it. The copy is kept only once the data plane has verified all of it."""

        def fill(staging: Path) -> None:
            begun = time.perf_counter_ns()
            self.source.copy(origin, staging)
            fetched = replace(wanted, fetch_us=(time.perf_counter_ns() - begun) // 1000)
            self.load_reports[digest] = self.plane.load(staging, digest, fetched)

        try:
            await asyncio.to_thread(self.state.stage, digest, fill)
        except (ScorerError, OSError):
            # Without a copy a restart could not serve it.
            await self._let_go({digest} & self.load_reports.keys())
            raise

    async def _load_copy(self, digest: str, wanted: LoadFor = _KNOWN) -> None:
        self.vetting.check(digest)
        if digest not in self.load_reports:
            self.load_reports[digest] = await asyncio.to_thread(
                self.plane.load, self.state.bundle(digest), digest, wanted
            )

    def _is_loaded(self, digest: str) -> bool:
        return any(entry.get("digest") == digest for entry in self.plane.status().get("bundles", ()))

    async def _let_go(self, digests: Iterable[str]) -> None:
        for digest in digests:
            self.load_reports.pop(digest, None)
            try:
                await asyncio.to_thread(self.plane.unload, digest)
            except ScorerError as error:
                self.events.warning("not_unloaded", bundle=digest, error=str(error))

    async def _tidy(self) -> None:
        await self._let_go(set(self.load_reports) - self._needed())
        await asyncio.to_thread(self._collect, self._needed())

    def _needed(self) -> set[str]:
        """The bundles that are served, or would be after one rollback, or observe."""
        now = self._now
        return self._answered() | self._evaluating(now.table.observe) | self._evaluating(now.pending)

    def _answered(self) -> set[str]:
        """The bundles that answer, or did before the last change."""
        return self._now.table.bundles() | bundles_of(self._now.before)

    def _evaluating(self, observe: Mapping[str, Lanes]) -> set[str]:
        """The bundles that have to be loaded here to observe."""
        return {lane.bundle for lanes in observe.values() for lane in lanes if self._evaluated_here(lane)}

    def _evaluated_here(self, lane: Lane) -> bool:
        return not lane.pool or self.role == "shadow"

    async def _with_reads(self, lane: Lane, origin: Resolved) -> Lane:
        """A lane of the pool with what its bundle reads; the bundle itself is not kept here."""

        def fill(staging: Path) -> None:
            self.source.copy(origin, staging)
            self.vetting.check_copy(staging)

        await asyncio.to_thread(self.state.stage, lane.bundle, fill)
        features = await asyncio.to_thread(self._features_of, lane.bundle)
        await asyncio.to_thread(self._collect, self._needed())
        return replace(lane, reads=tuple(sorted(features or ())))

    def _features(self, answer: Lanes) -> set[str] | None:
        """What the bundle with the largest share reads of a request; None: its copy does not say."""
        return self._features_of(max(answer, key=lambda lane: lane.share).bundle) if answer else None

    def _features_of(self, digest: str) -> set[str] | None:
        """What a bundle reads of a request, by its copy."""
        try:
            schema = json.loads((self.state.bundle(digest) / "schema.json").read_bytes())
            return {str(feature["name"]) for feature in schema["features"]}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _collect(self, needed: set[str]) -> None:
        try:
            self.state.collect(needed)
        except OSError as error:
            self.events.warning("copies_not_deleted", error=str(error))

    async def _note(self, following: Mapping[str, Following]) -> None:
        """Remembers where aliases point without changing the table."""
        if any(self._now.following[name] != value for name, value in following.items()):
            self._now = replace(self._now, following={**self._now.following, **following})
            await self._remember(self._now)

    async def _remember(self, remembered: SavedState) -> None:
        # A state file that cannot be written must not stop a swap: serving comes first.
        self._now = replace(self._now, reserved=max(self._now.reserved, remembered.reserved))
        try:
            await asyncio.to_thread(self.state.write, remembered)
        except OSError as error:
            if self.saved:
                self.events.error("state_not_saved", error=str(error), path=str(self.state.path))
            self.saved = False
        else:
            self.saved = True

    async def _pinned(self, checkpoint: str) -> Following:
        """A pin on where the alias points now: it ends when the alias moves."""
        alias = self.settings.checkpoints[checkpoint].alias
        try:
            target = await asyncio.to_thread(self.source.resolve, alias)
            return Following(alias, target.digest, pinned=True)
        except ScorerError:
            # The registry cannot say: what was seen last will do.
            return replace(self._now.following[checkpoint], pinned=True)

    def _tell_if_ready(self) -> None:
        if self.is_ready():
            self.ready.set()

    def _next_version(self) -> int:
        return max(self._now.table.version, self._now.reserved) + 1

    def _resolve(self, reference: str) -> Resolved:
        """What a reference stands for; digests of own copies also while the registry is away."""
        try:
            return self.source.resolve(reference)
        except RegistryUnavailableError:
            parsed = parse_reference(reference)
            own = {digest.removeprefix("sha256:") for digest in self.state.digests()}
            if not isinstance(parsed, DigestReference) or not any(d.startswith(parsed.prefix) for d in own):
                raise
            digest = f"sha256:{pick_digest(parsed, own, str(self.state.path))}"
            return Resolved(digest, None)

    def _check_checkpoint(self, checkpoint: str) -> None:
        if checkpoint not in self.settings.checkpoints:
            from scorer.config.problems import nearest

            raise UnknownCheckpointError(
                f'no checkpoint "{checkpoint}"; {nearest(checkpoint, self.settings.checkpoints)}'
            )

    def _check_answers(self, checkpoint: str) -> None:
        if self.role == "shadow":
            raise InvalidLanesError(
                f'checkpoint "{checkpoint}": this server is of the shadow pool and answers nobody; set lanes '
                "at a live server, observe lanes here"
            )

    def _check_running(self) -> None:
        if self.draining:
            raise ControlUnavailableError("the server is stopping; change its successor")


def _previous(before: Mapping[str, Lanes]) -> dict[str, str]:
    """By checkpoint: the bundle that answered most of its traffic before."""
    return {name: max(lanes, key=lambda lane: lane.share).bundle for name, lanes in before.items()}


def _shown(lanes: Mapping[str, Lanes]) -> dict[str, Any]:
    """Lanes as the log shows them: a digest where there is one lane, shares where there are several."""
    return {
        name: value[0].bundle if len(value) == 1 else {f"{e.name} {e.share:g}": e.bundle for e in value}
        for name, value in lanes.items()
    }


def _shown_observers(observe: Mapping[str, Lanes]) -> dict[str, Any]:
    return {
        name: {f"{e.name} {e.sample:g}{' pool' if e.pool else ''}": e.bundle for e in lanes}
        for name, lanes in observe.items()
    }
