"""The overlay from what is new: exactly what fitting all decisions again gives.

Three things are kept from run to run:

* of each decision with a known outcome, some 40 bytes (`settled`): what the fit reads of it;
* the learner after each step of its replay (`OverlayLearner.state`);
* how far the columns of each log were read, and the ids whose records matter only later.

A run joins again the ids of which it has read a record, and compares their rows with the present ones. The
replay continues after the last step before the first row that has changed: a late or revised outcome, a retry
or a withdrawal therefore has the effect that it has on a fit of everything. Delays are measured at midnight;
when they change, all kept rows are replayed, because every weight depends on them.

If anything else changed (the oracle, the settings, the catalogue, a log that was read again), the rows are
made anew from the stored columns.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from scorer.durable import write_atomically
from scorer.learn.errors import DataError
from scorer.learn.experience import Experience, State
from scorer.learn.join.assembling import NothingFitsError, assemble
from scorer.learn.join.cache import LogColumns
from scorer.learn.join.catalogue import CatalogueLayout
from scorer.learn.join.decisions import UNSEEN, USED, read_layout, select
from scorer.learn.join.findings import Findings, JoinFinding
from scorer.learn.join.hashing import Hashes, id_hashes
from scorer.learn.join.joining import log_folder, note_logs, read_logs, window_begin_us
from scorer.learn.join.maturity import windows
from scorer.learn.join.outcomes import resolve
from scorer.learn.join.picking import IdIndex, PickedLog, partitions
from scorer.learn.join.source_columns import LogTables, SourceColumns
from scorer.learn.oracle import OracleTask
from scorer.learn.overlay.delays import DAY_MS, ENOUGH, HOUR_MS, Delays, families
from scorer.learn.overlay.design import Design, logit
from scorer.learn.overlay.learner import OverlayLearner
from scorer.learn.overlay.live import LiveOracle, oracle_id
from scorer.learn.overlay.settings import OverlaySettings
from scorer.learn.overlay.settled import ROW, Rows, SettledRows
from scorer.learn.overlay.stream import REPLAY_MS, Fitted, OutcomeStream, catch_up, first_measured_ms
from scorer.stats.arrays import Ints

if TYPE_CHECKING:
    from scorer.learn.join.settings import JoinSettings
    from scorer.log import BundleShelf, ReaderKey
    from scorer.log.source.interface import DecisionSource

STATE: Final = "state.json"
PARTITION_ROWS: Final = 200_000
"""Decisions that are joined at a time. Each takes some kilobytes of memory."""
MOST_PARTITIONS: Final = 800
"""Partitions when all rows are made anew; each has an open file. Those of more decisions are larger."""
MOST_CHANGED: Final = 2_000_000
"""Ids above which all rows are made anew rather than those of the ids."""

_FORMAT = 1


@dataclass(frozen=True)
class Updated:
    """An overlay, and what was done for it.

    Attributes:
        fitted: the overlay.
        findings: faults of the logs.
        rebuilt: whether all rows were made anew.
        joined: ids whose records were joined.
        changed: rows that are not as they were.
        replayed: outcomes that were learned from in this run.
        kept: decisions with a known outcome.
    """

    fitted: Fitted
    findings: tuple[JoinFinding, ...]
    rebuilt: bool
    joined: int
    changed: int
    replayed: int
    kept: int


@dataclass(frozen=True)
class OverlayInputs:
    """What an overlay is fitted on and for.

    Attributes:
        source: the logs.
        shelf: the bundles of the decisions.
        live: directory of the bundle that the overlay is for.
        task: its columns and catalogue.
        join: `[join]`.
        overlay: `[overlay]`.
        checkpoint: name of the checkpoint.
        untaught_ms: Unix time from which on no decision has taught the oracle.
        reader_key: key that decrypts sensitive features.
    """

    source: DecisionSource
    shelf: BundleShelf
    live: Path
    task: OracleTask
    join: JoinSettings
    overlay: OverlaySettings
    checkpoint: str
    untaught_ms: int
    reader_key: ReaderKey | None = None


def update(inputs: OverlayInputs, cache: Path, folder: Path, as_of_ms: int) -> Updated:
    """Fit the overlay as of a moment.

    Args:
        inputs: what it is fitted on.
        cache: of the join, which other joins of the checkpoint may share.
        folder: what is kept from run to run; it can be deleted.
        as_of_ms: the moment, Unix time.

    Raises:
        LogError: no log can be read.
        DataError: there is nothing to fit on.
    """
    with ExitStack() as stack:
        findings = Findings()
        readings = read_logs(
            inputs.source, inputs.join, as_of_ms, inputs.checkpoint, cache, inputs.reader_key, stack
        )
        note_logs(readings, findings)
        logs = {log_folder(one.log): one.columns(inputs.checkpoint) for one in readings}
        names = [one.log.name for one in readings]
        run = _Run(inputs, logs, names, folder, as_of_ms)
        return replace(run.update(), findings=findings.rows())


@dataclass
class _Kept:
    """The state of a folder.

    Attributes:
        key: what the rows depend on besides the records; with another one they are not used.
        logs: how far each log was read, by its folder.
        as_of_ms: moment of the last run.
        newest: time and id of the newest used decision, and the digest of its bundle, whose catalogue and
            columns the rows have.
        bundles: digests of the bundles of all decisions, and whether each was found.
        pending: hashes, and times from which on they must be joined again.
        files: of the rows, by hour.
        ticks: of the learner, by the end of the step.
        count: number of the rows.
        delays: when they were measured and what was found; empty: not yet.
        run: number of the last run.
    """

    key: str
    logs: dict[str, dict[str, Any]]
    as_of_ms: int
    newest: tuple[int, str, str]
    bundles: dict[str, bool]
    pending: list[tuple[int, int]]
    files: dict[int, str] = field(default_factory=dict)
    ticks: dict[int, str] = field(default_factory=dict)
    count: int = 0
    delays: dict[str, Any] = field(default_factory=dict)
    run: int = 0


Newest = tuple[int, str, CatalogueLayout]
"""Time and id of the newest used decision, and the layout of its bundle."""


@dataclass(frozen=True)
class _Joined:
    """What a join of some ids gives."""

    rows: Rows
    pending: list[tuple[int, int]]
    newest: Newest | None


class _RebuildError(Exception):
    """The rows must be made anew.

    Args:
        newest: the decision whose bundle has another catalogue or other columns, if that is the reason.
    """

    def __init__(self, newest: Newest | None = None) -> None:
        super().__init__()
        self.newest = newest


class _Run:
    """One run of `update`."""

    def __init__(
        self,
        inputs: OverlayInputs,
        logs: dict[str, LogColumns],
        names: Sequence[str],
        folder: Path,
        as_of_ms: int,
    ) -> None:
        self._inputs, self._logs, self._names = inputs, logs, names
        self._folder, self._as_of_ms = folder, as_of_ms
        self._plan = inputs.overlay
        self._design = Design(inputs.task, self._plan.segment)
        _, self._family = families(inputs.task, self._plan.family or None)
        self._since_us = window_begin_us(inputs.join, as_of_ms)
        self._since_ms = -(-self._since_us // 1000)
        self._found = set(inputs.shelf.digests)
        self._bundles: dict[str, bool] = {}
        self._stored = {name: columns.stored for name, columns in logs.items()}
        self._key = self._made_key()
        self._indices = {
            name: IdIndex(folder / "ids" / name / self._stored[name].epoch, columns)
            for name, columns in logs.items()
        }

    def update(self) -> Updated:
        for name in ("rows", "ticks"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        before = self._load()
        for index in self._indices.values():
            index.update()
        with LiveOracle.of(self._inputs.live) as self._oracle:
            changed, newest, run = np.empty(0, ROW), None, 0
            if before is not None:
                run = before.run
                try:
                    kept, rows, changed, joined = self._changed(before)
                except _RebuildError as rebuild:
                    before, newest = None, rebuild.newest
            if before is None:
                kept, rows, joined = self._rebuilt(run, newest)
        delays, is_new = self._delays(kept, rows, changed)
        anew = before is None or is_new or self._since_ms > self._inputs.untaught_ms
        learner, replayed = self._replayed(kept, rows, delays, changed, anew=anew)
        self._store(kept, rows)
        fitted = Fitted(learner.spec(), learner, delays)
        return Updated(fitted, (), before is None, joined, len(changed), replayed, rows.count)

    def _made_key(self) -> str:
        inputs = self._inputs
        about = {
            "format": _FORMAT,
            "oracle": oracle_id(inputs.live),
            "untaught_ms": inputs.untaught_ms,
            "checkpoint": inputs.checkpoint,
            "join": inputs.join.model_dump(mode="json"),
            "overlay": inputs.overlay.model_dump(mode="json"),
            "reader_key": 0 if inputs.reader_key is None else inputs.reader_key.id,
            "logs": [[name, one.epoch, one.lost] for name, one in self._stored.items()],
        }
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()

    def _load(self) -> _Kept | None:
        try:
            kept = _Kept(**json.loads((self._folder / STATE).read_bytes()))
            kept.newest = (kept.newest[0], kept.newest[1], kept.newest[2])
            kept.pending = [(int(one), int(at)) for one, at in kept.pending]
            kept.files = {int(hour): name for hour, name in kept.files.items()}
            kept.ticks = {int(tick): name for tick, name in kept.ticks.items()}
        except (OSError, ValueError, TypeError, IndexError, AttributeError):
            return None
        there = [self._folder / "rows" / name for name in kept.files.values()]
        there += [self._folder / "ticks" / name for name in kept.ticks.values()]
        is_usable = kept.key == self._key and kept.as_of_ms <= self._as_of_ms
        is_usable = is_usable and set(kept.logs) == set(self._logs)
        # A bundle that was not found may be there now, or the other way round.
        is_usable = is_usable and all(kept.bundles[one] == (one in self._found) for one in kept.bundles)
        if not is_usable or not all(path.is_file() for path in there):
            return None
        # A file that a loss of power has cut off is not used.
        return kept if SettledRows(self._folder / "rows", kept.files, 0).count == kept.count else None

    def _changed(self, before: _Kept) -> tuple[_Kept, SettledRows, Rows, int]:
        """Join the ids again of which a record is new, and replace their rows."""
        hashes = self._affected(before)
        if len(hashes) > MOST_CHANGED:
            raise _RebuildError
        layout = read_layout(before.newest[2], self._inputs.shelf)
        if layout is None:
            raise _RebuildError
        newest = (before.newest[0], before.newest[1], layout)
        gone = set(hashes.tolist())
        pending = [one for one in before.pending if one[0] not in gone]
        hours = [index.gone_hours(hashes) for index in self._indices.values()]
        new, found = list[Rows](), list[Newest]()
        for picked in self._picked(hashes):
            joined = self._join(picked, max([newest, *found], key=_moment))
            hours += [one.times_us() // (HOUR_MS * 1000) for one in picked]
            pending += joined.pending
            new.append(joined.rows)
            found += [] if joined.newest is None else [joined.newest]
        if np.isin(id_hashes(np.array([newest[1]])), hashes)[0] and (
            not found or max(map(_moment, found)) < newest[:2]
        ):
            # The newest decision is not used any more.
            raise _RebuildError
        newest = max([newest, *found], key=_moment)
        rows = SettledRows(self._folder / "rows", before.files, before.run + 1)
        changed = rows.replace(
            hashes, np.unique(np.concatenate([np.empty(0, np.int64), *hours])), np.concatenate(new)
        )
        kept = replace(
            before,
            logs=self._positions(),
            as_of_ms=self._as_of_ms,
            newest=(newest[0], newest[1], newest[2].digest),
            bundles=before.bundles | self._bundles,
            pending=pending,
            run=before.run + 1,
        )
        return kept, rows, changed, len(hashes)

    def _picked(self, hashes: Hashes) -> Iterator[list[PickedLog]]:
        """Yield the records of some ids by log, `PARTITION_ROWS` ids at a time."""
        count = -(-len(hashes) // PARTITION_ROWS) or 1
        groups = None
        if count > 1:
            # The ids of the same hours together, so that few of the stored parts are read several times.
            hours = np.max([index.hours(hashes) for index in self._indices.values()], axis=0)
            groups = np.empty(len(hashes), np.int64)
            groups[np.argsort(hours, kind="stable")] = np.arange(len(hashes)) * count // len(hashes)
        found = [index.find(hashes, groups) for index in self._indices.values()]
        yield from map(list, zip(*found, strict=True))

    def _affected(self, before: _Kept) -> Hashes:
        """Return the hashes of the ids to join again."""
        found = [np.array([one for one, at in before.pending if at <= self._as_of_ms], np.uint64)]
        for name, index in self._indices.items():
            now, earlier = self._stored[name], before.logs[name]
            found.append(index.between(earlier["next"], now.next_sequence - 1))
            found.append(index.of(sorted(set(now.withdrawn) - set(earlier["withdrawn"]))))
            # Rows that retention has removed.
            found.append(index.between(earlier["first"], now.first_sequence - 1))
        return np.unique(np.concatenate(found))

    def _positions(self) -> dict[str, dict[str, Any]]:
        return {
            name: {"next": one.next_sequence, "first": one.first_sequence, "withdrawn": list(one.withdrawn)}
            for name, one in self._stored.items()
        }

    def _rebuilt(self, run: int, newest: Newest | None) -> tuple[_Kept, SettledRows, int]:
        """Make the rows of all ids, partition by partition."""
        (self._folder / STATE).unlink(missing_ok=True)
        total = sum(columns.count("decisions") for columns in self._logs.values())
        count = min(-(-total // PARTITION_ROWS) or 1, MOST_PARTITIONS)
        while True:
            rows, pending = SettledRows(self._folder / "rows", {}, run + 1), list[tuple[int, int]]()
            rows.commit()
            try:
                with TemporaryDirectory(dir=self._folder, prefix=".partitions-") as folder:
                    for logs in partitions(list(self._logs.values()), count, Path(folder)):
                        joined = self._join(logs, newest)
                        rows.append(joined.rows)
                        pending += joined.pending
                        if joined.newest is not None:
                            newest = max(newest or joined.newest, joined.newest, key=_moment)
                break
            except _RebuildError as rebuild:
                newest = rebuild.newest
        if newest is None:
            name = self._inputs.checkpoint
            raise DataError(f'no decision of "{name}" can be used; `scorer learn join` says why')
        kept = _Kept(
            self._key,
            self._positions(),
            self._as_of_ms,
            (newest[0], newest[1], newest[2].digest),
            self._bundles,
            pending,
            run=run + 1,
        )
        return kept, rows, total

    def _join(self, logs: Sequence[LogTables], newest: Newest | None) -> _Joined:
        """Join the records of some ids, and return what is kept of them.

        Args:
            logs: their records, by log.
            newest: the newest decision so far, whose catalogue and columns the rows have.

        Raises:
            _RebuildError: a decision here is newer and has another catalogue or other columns.
        """
        inputs, findings = self._inputs, Findings()
        columns = SourceColumns(logs, self._names, inputs.join.outcome)
        light = columns.light()
        if not len(light):
            return _Joined(np.empty(0, ROW), [], None)
        digests = pc.unique(light["bundle"]).to_pylist()
        self._bundles |= {one: one in self._found for one in digests}
        outcomes = resolve(columns, inputs.checkpoint, self._as_of_ms, inputs.join.unproven, findings)
        selection = select(columns, inputs.shelf, outcomes, findings, self._as_of_ms * 1000, self._since_us)
        pending = _later(columns, selection.state, self._as_of_ms)
        used = np.flatnonzero(selection.state == USED)
        if selection.newest is None:
            return _Joined(np.empty(0, ROW), pending, None)
        times = light["decided_at_us"].to_numpy()[used]
        latest = used[times == times.max()]
        name = max(light["decision_id"].take(pa.array(latest)).to_pylist())
        own: Newest = (int(times.max()), name, selection.newest)
        if newest is None:
            newest = own
        elif own[:2] > newest[:2] and not _same(own[2], newest[2]):
            raise _RebuildError(own)
        of = windows(newest[2].actions, inputs.join)
        try:
            experience = assemble(
                inputs.checkpoint,
                selection.blocks(columns),
                outcomes,
                newest[2],
                inputs.join,
                self._as_of_ms,
                of,
                findings,
            )
        except NothingFitsError:
            return _Joined(np.empty(0, ROW), pending, own)
        waiting = np.flatnonzero(experience.state == State.IN_FLIGHT)
        waiting = waiting[outcomes.rows_of(experience.decision_id[waiting]) >= 0]
        ends = experience.time_ms[waiting] + of.window_ms[experience.action[waiting]]
        pending += zip(id_hashes(experience.decision_id[waiting]).tolist(), ends.tolist(), strict=True)
        return _Joined(self._rows(experience), pending, own)

    def _rows(self, experience: Experience) -> Rows:
        experience.require_features("overlay")
        if experience.actions != tuple(action.id for action in self._inputs.task.actions):
            raise DataError(
                f"overlay: the newest decisions have other actions than {self._inputs.live}; the overlay is "
                "fitted again when the live bundle has made decisions"
            )
        settled = experience.settled()
        rows = np.empty(len(settled), ROW)
        rows["hash"] = id_hashes(settled.decision_id)
        rows["time_ms"], rows["settled_ms"] = settled.time_ms, settled.settled_ms
        rows["segment"] = self._design.codes(settled.context)
        rows["action"], rows["reward"] = settled.action, settled.reward.astype(np.int8)
        rows["logit"] = np.nan
        new = np.flatnonzero(settled.time_ms >= self._inputs.untaught_ms)
        if len(new):
            scores = self._oracle.scores(settled.take(new))
            rows["logit"][new] = np.where(np.isnan(scores), np.nan, logit(scores))
        return rows

    def _delays(self, kept: _Kept, rows: SettledRows, changed: Rows) -> tuple[Delays, bool]:
        """Return the delays, and whether they are not those of the last run."""
        window, begin = self._plan.window_hours * HOUR_MS, first_measured_ms(self._since_ms)
        moment = self._as_of_ms - self._as_of_ms % DAY_MS
        if self._old(rows, begin, moment, ENOUGH) < ENOUGH:
            moment = self._as_of_ms
        touched = (changed["time_ms"] >= begin) & (changed["time_ms"] + window <= moment)
        about = [begin, moment]
        if kept.delays and kept.delays["about"] == about and not touched.any():
            return self._with_delays(kept.delays), False
        delay, family, reward = [], [], []
        for one in rows.between(begin, int(moment - window)):
            old = one[one["time_ms"] + window <= moment]
            delay.append(_narrow(old["settled_ms"] - old["time_ms"]))
            family.append(self._family[old["action"]].astype(np.int16))
            reward.append(old["reward"])
        found = Delays.of(
            np.concatenate([np.empty(0, np.int32), *delay]),
            np.concatenate([np.empty(0, np.int16), *family]),
            np.concatenate([np.empty(0, np.int8), *reward]),
            self._inputs.task,
            factor=self._plan.family or None,
            window_hours=self._plan.window_hours,
            quantile=self._plan.quantile,
        )
        values = {name: getattr(found, name).tolist() for name in _DELAYS}
        is_new = not kept.delays or any(kept.delays[name] != values[name] for name in _DELAYS)
        kept.delays = {"about": about, **values}
        return found, is_new

    def _old(self, rows: SettledRows, begin: int, moment: int, enough: int) -> int:
        """Count the rows of decisions that are old enough at a moment, up to a number."""
        window, count = self._plan.window_hours * HOUR_MS, 0
        for one in rows.between(begin, int(moment - window)):
            count += int((one["time_ms"] + window <= moment).sum())
            if count >= enough:
                break
        return count

    def _with_delays(self, values: dict[str, Any]) -> Delays:
        factor = self._plan.family or None
        names, of_action = families(self._inputs.task, factor)
        age, known, effective = (np.array(values[name]) for name in _DELAYS)
        return Delays(factor, names, of_action, age, known, effective)

    def _replayed(
        self, kept: _Kept, rows: SettledRows, delays: Delays, changed: Rows, *, anew: bool
    ) -> tuple[OverlayLearner, int]:
        """Return the learner as of the moment, from its state before the first row that has changed."""
        ages = delays.age_ms[self._family]
        first = max(self._inputs.untaught_ms, self._since_ms)
        due = changed["time_ms"] + ages[changed["action"]]
        counts = ~np.isnan(changed["logit"]) & (changed["settled_ms"] <= due)
        limit = int(due[counts].min()) if counts.any() else 1 << 62
        kept.ticks = {} if anew else {tick: name for tick, name in kept.ticks.items() if tick < limit}
        begun = max(kept.ticks, default=None)
        if begun is None:
            learner = OverlayLearner(self._design, self._plan)
            hours = [hour for hour in rows.files if (hour + 1) * HOUR_MS > first]
            begun = min(hours, default=self._as_of_ms // HOUR_MS) * HOUR_MS - 1
            begun -= begun % REPLAY_MS
        else:
            with np.load(self._folder / "ticks" / kept.ticks[begun]) as state:
                learner = OverlayLearner.restored(self._design, self._plan, dict(state))
        before, stream = learner.outcomes, OutcomeStream(self._design, delays)
        read_ms = max(begun - int(ages.max()), first) - 1
        for tick in _ticks(begun, self._as_of_ms):
            for one in rows.between(read_ms + 1, tick):
                own = one[~np.isnan(one["logit"]) & (one["time_ms"] + ages[one["action"]] > begun)]
                stream.add(
                    own["hash"],
                    own["time_ms"],
                    own["settled_ms"],
                    own["segment"].astype(np.int64),
                    own["action"].astype(np.int64),
                    own["logit"],
                    own["reward"].astype(np.float64),
                )
            read_ms, known = max(tick, read_ms), learner.outcomes
            catch_up(stream, learner, tick)
            if tick % REPLAY_MS == 0 and learner.outcomes > known:
                kept.ticks[tick] = f"{tick}-{kept.run}.npz"
                content, arrays = BytesIO(), dict[str, Any](learner.state())
                np.savez(content, **arrays)
                write_atomically(self._folder / "ticks" / kept.ticks[tick], content.getvalue())
        return learner, learner.outcomes - before

    def _store(self, kept: _Kept, rows: SettledRows) -> None:
        """Make the state durable, then remove what it does not name."""
        kept.files, kept.count = rows.files, rows.count
        write_atomically(self._folder / STATE, json.dumps(asdict(kept)).encode() + b"\n")
        rows.commit()
        used = set(kept.ticks.values())
        for path in (self._folder / "ticks").iterdir():
            if path.name not in used:
                path.unlink()
        for index in self._indices.values():
            index.forget()
        epochs = {self._folder / "ids" / name / one.epoch for name, one in self._stored.items()}
        for path in (self._folder / "ids").glob("*/*"):
            if path not in epochs:
                shutil.rmtree(path)


_DELAYS: Final = ("age_ms", "known", "effective")


def _moment(one: Newest) -> tuple[int, str]:
    return one[:2]


def _ticks(begun: int, end: int) -> Iterator[int]:
    """Yield the ends of the steps after a moment, the last one at `end`."""
    tick = begun - begun % REPLAY_MS + REPLAY_MS
    while tick < end:
        yield tick
        tick += REPLAY_MS
    yield end


def _later(columns: SourceColumns, state: npt.NDArray[np.int8], as_of_ms: int) -> list[tuple[int, int]]:
    """Return the ids of records from after the moment, with the moment from which on they count."""
    light, outcomes = columns.light(), columns.outcomes()
    unseen = np.flatnonzero(state == UNSEEN)
    decisions = light.select(["decision_id", "decided_at_us"]).take(pa.array(unseen))
    received, occurred = (outcomes[name].to_numpy() for name in ("received_at_us", "occurred_at_ms"))
    known = np.where(received != 0, received // 1000, occurred)
    later = np.flatnonzero(known > as_of_ms)
    ids = id_hashes(decisions["decision_id"]), id_hashes(outcomes["decision_id"].take(pa.array(later)))
    times = -(-decisions["decided_at_us"].to_numpy() // 1000), known[later]
    return list(zip(np.concatenate(ids).tolist(), np.concatenate(times).tolist(), strict=True))


def _same(one: CatalogueLayout, other: CatalogueLayout) -> bool:
    return (one.features, one.actions) == (other.features, other.actions)


def _narrow(values: Ints) -> npt.NDArray[Any]:
    """Return values as 32-bit integers if they fit."""
    fits = not len(values) or int(np.abs(values).max()) < 1 << 31
    return values.astype(np.int32) if fits else values
