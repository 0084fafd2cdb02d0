"""Restoring the saved state when a server starts.

The bundles of the answer lanes are loaded first, from the server's copies. The bundles of observe lanes and
those that a rollback would restore are loaded later, while requests are already answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scorer.control import added
from scorer.control.active import UNMEASURED, ActiveLanes, previous_bundles, shown
from scorer.control.lanes import Lane, Lanes, LaneTable, bundles_of
from scorer.control.state import Following, SavedState, StateError
from scorer.control.vetting import VettingError
from scorer.errors import ScorerError


async def restore(active: ActiveLanes) -> None:
    """Activate the saved lane table, as far as it can be loaded and is still configured.

    Observe lanes wait for `restore_observers`. What cannot be restored is logged and left out.
    """
    saved = await _read(active)
    await asyncio.to_thread(active.loaded.lists.read)
    active.tell_if_ready()
    if saved is None:
        return
    async with active.lock:
        await _add_again(active, {k: v for k, v in saved.added.items() if k not in saved.removed})
        configured = active.settings.checkpoints
        observed = {**saved.table.observe, **saved.pending}
        # Versions continue after the saved one, even if the table itself cannot be restored.
        active.now = replace(
            active.now,
            reserved=max(saved.reserved, saved.table.version),
            pending={name: lanes for name, lanes in observed.items() if name in configured},
            managed={name: by for name, by in saved.managed.items() if name in configured},
            break_glass={name: by for name, by in saved.break_glass.items() if name in configured},
        )
        await _answer_again(active, saved)


async def restore_observers(active: ActiveLanes) -> None:
    """Activate the observe lanes that were active before the start; log those that are left out."""
    async with active.lock:
        if not active.now.pending:
            return
        for checkpoint, lanes in active.now.pending.items():
            kept = tuple([lane for lane in lanes if await _loads_observer(active, checkpoint, lane)])
            try:
                if kept:
                    await active.change({}, observe={checkpoint: kept}, event={"cause": "restart"})
            except (ScorerError, OSError) as error:
                for lane in kept:
                    _leave_out(active, checkpoint, lane, error)
        active.now = replace(active.now, pending={})
        await active.save(active.now)
        await active.loaded.keep(active.needed())


async def load_previous(active: ActiveLanes) -> None:
    """Load the bundles that a rollback would restore, so that a rollback takes effect at once.

    If a bundle cannot be loaded now, the rollback tries its copy again.
    """
    loaded = active.loaded
    async with active.lock:
        missing = bundles_of(active.now.before) - loaded.reports.keys()
        for digest in sorted(missing):
            try:
                await loaded.load_copy(digest)
            except (ScorerError, OSError) as error:
                active.events.warning("previous_not_loaded", bundle=digest, error=str(error))
        if missing & loaded.reports.keys():
            try:
                await asyncio.to_thread(loaded.plane.swap, active.table, previous_bundles(active.now.before))
            except ScorerError as error:
                active.events.warning("previous_not_offered", error=str(error))


async def _read(active: ActiveLanes) -> SavedState | None:
    """Return the saved state; None if there is nothing to restore."""
    try:
        saved = await asyncio.to_thread(active.loaded.state.read)
    except StateError as error:
        active.events.error("state_unreadable", error=str(error))
        saved = None
    try:
        await asyncio.to_thread(active.loaded.vetting.read)
    except VettingError as error:
        active.events.error("vetting_unreadable", error=str(error))
    active.loaded.plane.note_quarantined(len(active.loaded.vetting.quarantine))
    if saved is None and active.is_shadow:
        # A server of the shadow pool reports that it is healthy once it has a table, even an empty one.
        return active.now
    return saved


async def _add_again(active: ActiveLanes, known: Mapping[str, Mapping[str, Any]]) -> None:
    """Add the checkpoints that were added before the start. The configuration takes precedence."""
    for name, document in known.items():
        if name in active.settings.checkpoints:
            active.events.info("checkpoint_configured", checkpoint=name)
            continue
        try:
            settings = added.check(name, document, role=active.settings.server.role)
            await asyncio.to_thread(active.loaded.plane.add_checkpoint, name, settings)
        except ScorerError as error:
            active.events.error("checkpoint_left_out", checkpoint=name, error=str(error))
        else:
            active.take_in(name, settings)


async def _answer_again(active: ActiveLanes, saved: SavedState) -> None:
    """Activate the saved answer lanes; a shadow pool activates a table without any."""
    configured, is_shadow = active.settings.checkpoints, active.is_shadow
    wanted = {
        name: lanes for name, lanes in saved.table.checkpoints.items() if name in configured and not is_shadow
    }
    loads = await asyncio.gather(*(_loads(active, name, lanes) for name, lanes in wanted.items()))
    usable = dict(zip(wanted, loads, strict=True))
    lanes = {name: wanted.get(name, ()) if usable.get(name) else () for name in configured}
    is_same = lanes == dict(saved.table.checkpoints) and not saved.table.observe and not is_shadow
    table = LaneTable(saved.table.version if is_same else active.next_version(), lanes)
    if not any(lanes.values()) and not is_shadow:
        return
    try:
        await asyncio.to_thread(active.loaded.plane.swap, table)
    except ScorerError as error:
        active.events.error("last_known_good_refused", error=str(error))
        return
    active.now = replace(
        active.now,
        table=table,
        before={name: b for name, b in saved.before.items() if lanes.get(name)},
        changed_last=tuple(name for name in saved.changed_last if lanes.get(name)),
        following={name: _followed(active, name, saved.following.get(name)) for name in lanes},
    )
    active.tell_if_ready()
    active.events.info("restored", lane_table=table.version, checkpoints=shown(lanes))


async def _loads(active: ActiveLanes, checkpoint: str, lanes: Lanes) -> bool:
    """Load the copies of some lanes' bundles; False, with a log entry, if one cannot be loaded."""
    try:
        for lane in lanes:
            await active.loaded.load_copy(lane.bundle)
    except (ScorerError, OSError) as error:
        active.events.error("last_known_good_refused", checkpoint=checkpoint, error=str(error))
        return False
    return bool(lanes)


def _followed(active: ActiveLanes, checkpoint: str, saved: Following | None) -> Following:
    alias = active.settings.checkpoints[checkpoint].alias
    # If the settings name another alias than before, that alias is followed and a pin ends.
    return saved if saved is not None and saved.alias == alias else Following(alias)


async def _loads_observer(active: ActiveLanes, checkpoint: str, lane: Lane) -> bool:
    """Load the bundle of an observe lane; False, with a log entry, if it cannot be loaded."""
    if not active.is_evaluated_here(lane):
        return True
    try:
        try:
            origin = await asyncio.to_thread(active.loaded.source.resolve, lane.bundle)
        except ScorerError:
            origin = None  # Only the copy can be used.
        await active.loaded.load(lane.bundle, origin, UNMEASURED)
    except (ScorerError, OSError) as error:
        _leave_out(active, checkpoint, lane, error)
        return False
    return True


def _leave_out(active: ActiveLanes, checkpoint: str, lane: Lane, error: Exception) -> None:
    active.events.error(
        "observer_left_out", checkpoint=checkpoint, lane=lane.name, bundle=lane.bundle, error=str(error)
    )
