"""The join: decisions and outcomes of one checkpoint in all logs of a source, as known at a moment.

The same logs and the same moment give the same experience: records from after the moment are not used, though
the logs may have them, so a join can be repeated later.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scorer.errors import LogError
from scorer.learn.errors import DataError
from scorer.learn.experience import Experience, State
from scorer.learn.join.assembling import assemble
from scorer.learn.join.cache import remove_earlier_layout
from scorer.learn.join.decisions import UsedDecisions, select
from scorer.learn.join.findings import LATER, Findings, JoinFinding
from scorer.learn.join.maturity import windows
from scorer.learn.join.outcomes import JoinedOutcomes, resolve
from scorer.learn.join.rates import Dependence, Rate, dependence, rates, windows_passed
from scorer.learn.join.reading import LogReading, chosen_checkpoint
from scorer.learn.join.settings import JoinSettings
from scorer.learn.join.source_columns import SourceColumns
from scorer.log.outcome_source import SOURCES
from scorer.log.source.interface import SourceQuery

if TYPE_CHECKING:
    from scorer.log import BundleShelf, ReaderKey
    from scorer.log.reading import Advance
    from scorer.log.source.interface import DecisionSource, ServerLog

_WEEK_MS = 7 * 86_400_000
_HOUR_US = 3_600_000_000
_LAG_HOURS = 1.0
_DEPENDS = 0.001


@dataclass(frozen=True)
class Joined:
    """What a join found.

    Attributes:
        checkpoint: whose decisions.
        as_of_ms: the moment.
        experience: over the newest bundle's catalogue.
        findings: everything that was wrong, by name.
        families: join rates per family.
        actions: join rates per action.
        dependence: whether missing outcomes depend on the action; None: nothing can be told.
        catalogue: digest of the bundle whose catalogue and columns these are.
    """

    checkpoint: str
    as_of_ms: int
    experience: Experience
    findings: tuple[JoinFinding, ...]
    families: tuple[Rate, ...]
    actions: tuple[Rate, ...]
    dependence: Dependence | None
    catalogue: str

    @property
    def sources(self) -> dict[str, int]:
        """Number of settled decisions by the kind of the source of their outcome."""
        codes = self.experience.source[self.experience.state == State.SETTLED]
        counts = np.bincount(codes, minlength=len(SOURCES))
        return {name: int(count) for name, count in zip(SOURCES, counts, strict=True) if count}

    def notes(self, settings: JoinSettings) -> dict[str, Any]:
        """What the file remembers of its making."""
        return {
            "checkpoint": self.checkpoint,
            "as_of_ms": self.as_of_ms,
            "catalogue": self.catalogue,
            # What came later is no part of what was known then: the file must not change as the log grows.
            "findings": [asdict(one) for one in self.findings if one.name != LATER],
            "families": [one.as_dict() for one in self.families],
            "actions": [one.as_dict() for one in self.actions],
            "dependence": None if self.dependence is None else asdict(self.dependence),
            "settings": settings.model_dump(mode="json"),
        }


def join(
    source: DecisionSource,
    shelf: BundleShelf,
    settings: JoinSettings | None = None,
    *,
    as_of_ms: int,
    checkpoint: str | None = None,
    cache: Path | None = None,
    advance: Advance | None = None,
    reader_key: ReaderKey | None = None,
) -> Joined:
    """Join the decisions of an action checkpoint with their outcomes, whichever logs they are in.

    A log that cannot be read does not end the join while another one can be read. It is a finding, and what
    an earlier join with the same cache has read of it is used.

    Args:
        source: The logs.
        shelf: The bundles of the decisions.
        settings: `[join]`; None: the defaults.
        as_of_ms: The moment, Unix time. Later records are not used.
        checkpoint: Name of the checkpoint; None: the only one that chooses actions.
        cache: A directory in which the columns of each log are stored. The next join with it reads only the
            records that were added since, whatever its moment, and gives the same result. It requires a
            checkpoint.
        advance: Called for each log with the bytes read so far and the total bytes.
        reader_key: Key that decrypts sensitive features. Decrypted values are also in the cache.

    Raises:
        LogError: No log can be read.
        DataError: There is no such checkpoint, there are several and none is named, or no decision can be
            used.
    """
    settings = settings or JoinSettings()
    findings = Findings()
    with ExitStack() as stack:
        readings = read_logs(source, settings, as_of_ms, checkpoint, cache, reader_key, stack, advance)
        note_logs(readings, findings)
        name = checkpoint or chosen_checkpoint(readings)
        columns = SourceColumns(
            [one.columns(name) for one in readings], [log.name for log in source.logs], settings.outcome
        )
        if not columns.choose_actions():
            raise DataError(
                f'the log holds no decision of an action at checkpoint "{name}"; `scorer log stat` lists'
            )
        _note_lag(columns, as_of_ms * 1000, findings)
        return _joined(name, columns, shelf, settings, as_of_ms, findings)


def read_logs(
    source: DecisionSource,
    settings: JoinSettings,
    as_of_ms: int,
    checkpoint: str | None,
    cache: Path | None,
    reader_key: ReaderKey | None,
    stack: ExitStack,
    advance: Advance | None = None,
) -> list[LogReading]:
    """Read all logs of a source into columns; see `join` for the arguments.

    Args:
        source: The logs.
        settings: `[join]`.
        as_of_ms: The moment, Unix time.
        checkpoint: Name of the checkpoint.
        cache: A directory in which the columns are stored.
        reader_key: Key that decrypts sensitive features.
        stack: Removes temporary files.
        advance: Called with the progress of each log.
    """
    about = {
        "outcome": settings.outcome,
        "checkpoint": checkpoint,
        # Rows that were read without the key are read again with it.
        "reader_key": "" if reader_key is None else f"{reader_key.id:016x}",
    }
    query = SourceQuery(checkpoint, _needed_since_us(settings, as_of_ms), settings.rows, reader_key)
    if cache is not None:
        remove_earlier_layout(cache)
    readings = []
    for log in source.logs:
        kept = None if cache is None or checkpoint is None else cache / log_folder(log)
        reading = LogReading(log, query, settings.outcome, kept, about, stack)
        reading.read(advance)
        readings.append(reading)
    return readings


def _needed_since_us(settings: JoinSettings, as_of_ms: int) -> int:
    """Return the time before which no row matters: a maturity window before the first decision to use."""
    if settings.days is None:
        return 0
    hours = max([settings.hours, *(family.hours for family in settings.families)])
    return max(as_of_ms * 1000 - round((settings.days * 24 + hours) * _HOUR_US), 0)


def window_begin_us(settings: JoinSettings, as_of_ms: int) -> int:
    """Return the time of the first decisions to use, in microseconds since the Unix epoch; 0: all of them."""
    return 0 if settings.days is None else as_of_ms * 1000 - round(settings.days * 86_400e6)


def log_folder(log: ServerLog) -> str:
    """Return the name of a log's folder in the cache: readable, and unique by a hash."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", log.name).strip("-")[-40:]
    return f"{readable}-{hashlib.sha256(log.name.encode()).hexdigest()[:12]}"


def note_logs(readings: Sequence[LogReading], findings: Findings) -> None:
    """Note the logs that cannot be read, damage, and rows that only earlier passes have read.

    Raises:
        LogError: No log can be read.
    """
    failed = [one for one in readings if one.error]
    if len(failed) == len(readings):
        raise LogError("; ".join(one.error for one in failed))
    seen: dict[str, str] = {}
    for one in readings:
        name = one.log.name
        if one.error:
            findings.add("unreadable log", f"{name}: {one.error}; {one.used}")
        elif one.identity in seen:
            findings.add("log given twice", f"{seen[one.identity]}, {name}")
        elif one.identity:
            seen[one.identity] = name
        if one.lost_rows:
            findings.add("log replaced or set back", name, one.lost_rows)
        one.note_damage(findings, f"{name}: " if len(readings) > 1 else "")


def _note_lag(columns: SourceColumns, until_us: int, findings: Findings) -> None:
    """Note logs whose newest record is much older than the newest record of all logs."""
    newest = columns.newest_us(until_us)
    latest = max((one for one in newest if one is not None), default=0)
    for place, one in enumerate(newest):
        if one is not None and latest - one > _LAG_HOURS * _HOUR_US:
            findings.add("lagging log", f"{columns.name_of(place)}: {(latest - one) / _HOUR_US:.1f} hours")


def _joined(
    checkpoint: str,
    columns: SourceColumns,
    shelf: BundleShelf,
    settings: JoinSettings,
    as_of_ms: int,
    findings: Findings,
) -> Joined:
    for name, count, examples in columns.notes():
        findings.add_rows(name, count, examples)
    since_us = window_begin_us(settings, as_of_ms)
    outcomes = resolve(columns, checkpoint, as_of_ms, settings.unproven, findings)
    selection = select(columns, shelf, outcomes, findings, as_of_ms * 1000, since_us)
    newest = selection.newest
    if newest is None:
        why = "; ".join(f"{one.count} {one.name}" for one in findings.rows()) or "there is none"
        raise DataError(f'no decision of "{checkpoint}" can be used: {why}')
    _note_orphans(outcomes, selection, findings)
    of = windows(newest.actions, settings)
    for name in of.unused:
        findings.add("family without actions", name)
    experience = assemble(
        checkpoint, selection.blocks(columns), outcomes, newest, settings, as_of_ms, of, findings
    )
    passed = windows_passed(experience, as_of_ms, of)
    families = rates(experience, of.family[experience.action], of.names, passed)
    actions = rates(experience, experience.action, experience.actions, passed)
    depends = dependence(actions)
    if depends is not None and depends.p < _DEPENDS:
        findings.add(
            "missingness depends on the action", f"Cramer's V {depends.cramers_v:.3f}, p {depends.p:.1g}"
        )
    _note_weeks(experience, findings)
    if not (experience.state == State.SETTLED).any():
        findings.add("no outcomes at all", settings.outcome)
    return Joined(
        checkpoint=checkpoint,
        as_of_ms=as_of_ms,
        experience=experience,
        findings=findings.rows(),
        families=tuple(families),
        actions=tuple(actions),
        dependence=depends,
        catalogue=newest.digest,
    )


def _note_orphans(outcomes: JoinedOutcomes, selection: UsedDecisions, findings: Findings) -> None:
    orphan = pc.invert(pc.is_in(outcomes.decision_id, value_set=selection.known.combine_chunks()))
    proven = pa.array(outcomes.token)
    for name, rows in (
        ("outcome without decision", pc.and_not(orphan, proven)),
        ("outcome of an absent decision", pc.and_(orphan, proven)),
    ):
        findings.add_ids(name, outcomes.decision_id.filter(rows))


def _note_weeks(experience: Experience, findings: Findings) -> None:
    """Notes weeks, Monday to Sunday in UTC, in which one action was taken throughout."""
    # Day 0 of the Unix epoch was a Thursday.
    week = (experience.time_ms + 3 * 86_400_000) // _WEEK_MS
    for one in np.unique(week):
        rows = week == one
        taken = np.unique(experience.action[rows])
        if len(taken) == 1 and len(experience.actions) > 1:
            monday = np.datetime64(int(one) * _WEEK_MS - 3 * 86_400_000, "ms").astype("datetime64[D]")
            findings.add(
                "one action in a week",
                f"{monday}: {int(rows.sum())} decisions, {experience.actions[taken[0]]}",
            )
