"""The join: one pass over a log, decisions and outcomes of one checkpoint, as known at a moment.

The same log and the same moment give the same experience: records from after the
moment are not seen, though they may be there, so a join can be repeated later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scorer.learn.errors import DataError
from scorer.learn.experience import Experience, State
from scorer.learn.join.assembling import assemble
from scorer.learn.join.cache import JoinColumns, LogColumns, MergedColumns
from scorer.learn.join.columns import CheckpointColumns
from scorer.learn.join.decisions import UsedDecisions, select
from scorer.learn.join.findings import LATER, Findings, JoinFinding
from scorer.learn.join.maturity import windows
from scorer.learn.join.outcomes import JoinedOutcomes, resolve
from scorer.learn.join.rates import Dependence, Rate, dependence, rates, windows_passed
from scorer.learn.join.settings import JoinSettings
from scorer.log import scan
from scorer.log.erasure import erased
from scorer.log.scanning import UNKNOWN, WITHDRAWN
from scorer.log.segments import log_identity

if TYPE_CHECKING:
    from scorer.log import BundleShelf, ReaderKey
    from scorer.log.reading import Advance, LogFinding

_EXAMPLES = 5
_WEEK_MS = 7 * 86_400_000
_DEPENDS = 0.001

# What the reader says of the log's bytes, in our names.
_DAMAGE = {
    "gap": "gap in the log",
    "unsynced_loss": "gap in the log",
    "corrupt_middle": "damaged segment",
    "damaged_bytes": "damaged segment",
    "corrupt_header": "damaged segment",
    "quarantined": "quarantined segment",
    "foreign_segment": "foreign segment",
    "duplicate": "sequence twice",
    "torn_tail": "unfinished tail",
}


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
    directory: str | PathLike[str],
    shelf: BundleShelf,
    settings: JoinSettings | None = None,
    *,
    as_of_ms: int,
    checkpoint: str | None = None,
    replicas: Sequence[str | PathLike[str]] = (),
    cache: Path | None = None,
    advance: Advance | None = None,
    reader_key: ReaderKey | None = None,
) -> Joined:
    """Joins the decisions of an action checkpoint with their outcomes.

    Args:
        directory: the log.
        shelf: the bundles that it speaks of.
        settings: `[join]`; None: the defaults.
        as_of_ms: the moment, Unix time: what the log holds from later is not seen.
        checkpoint: whose decisions; None: the only one that chooses actions.
        replicas: logs of further servers of the same checkpoint: an outcome may be in the log of another
            server than its decision.
        cache: a directory that keeps what was read: the next join with it reads only what the log gained
            since, whatever its moment, and gives the same result. It needs a checkpoint.
        advance: receives bytes read and bytes to read.
        reader_key: decrypts sensitive features; what it decrypts is then also in the cache.

    Raises:
        LogError: the directory is no log.
        DataError: there is no such checkpoint, several to choose from, or no decision that can be used.
    """
    settings = settings or JoinSettings()
    findings = Findings()
    name, columns = _read(directory, settings, checkpoint, cache, advance, findings, reader_key)
    every: list[JoinColumns] = [columns]
    for at, replica in enumerate(replicas, start=1):
        own = None if cache is None else cache / f"replica-{at}"
        every.append(_read(replica, settings, name, own, advance, findings, reader_key)[1])
    columns = every[0] if len(every) == 1 else MergedColumns(every)
    if not columns.choose_actions():
        raise DataError(
            f'the log holds no decision of an action at checkpoint "{name}"; `scorer log stat` lists'
        )
    return _joined(name, columns, shelf, settings, as_of_ms, findings)


def _read(
    directory: str | PathLike[str],
    settings: JoinSettings,
    checkpoint: str | None,
    cache: Path | None,
    advance: Advance | None,
    findings: Findings,
    reader_key: ReaderKey | None,
) -> tuple[str, JoinColumns]:
    """The columns of one log, and the name of their checkpoint."""
    points: dict[str, _Point] = {}
    if checkpoint is None:
        entries = scan(directory, advance=advance, reader_key=reader_key)
    else:
        about = {"checkpoint": checkpoint, "log": log_identity(Path(directory))}
        if gone := erased(directory):
            # What was read before an erasure is read again without it.
            about["erased"] = gone.version
        if reader_key is not None:
            # What was read without the key is read again with it.
            about["reader_key"] = f"{reader_key.id:016x}"
        point = points[checkpoint] = _Point(settings.outcome, cache, about)
        entries = scan(
            directory,
            checkpoint=checkpoint,
            start_sequence=point.columns.next_sequence(Path(directory)),
            advance=advance,
            reader_key=reader_key,
        )
    for sequence, kind, record in entries:
        if kind == UNKNOWN and checkpoint is None:
            findings.add("unknown record", f"sequence {sequence}")
        elif kind == UNKNOWN:
            points[str(checkpoint)].reading.note(sequence, "unknown record", f"sequence {sequence}")
        elif kind == WITHDRAWN and record.checkpoint in points:
            points[record.checkpoint].columns.withdraw(record.sequence)
        elif kind in {"decision", "outcome", "delivery"}:
            if record.checkpoint not in points:
                points[record.checkpoint] = _Point(settings.outcome, None, {})
            points[record.checkpoint].reading.add(sequence, kind, record)
    name, point = _chosen(points, checkpoint)
    point.reading.finish()
    _note_damage(point.columns.finish(entries), findings)
    return name, point.columns


class _Point:
    """One checkpoint while the log is read."""

    def __init__(self, outcome: str, cache: Path | None, about: Mapping[str, str | None]) -> None:
        self.columns = LogColumns(cache, {**about, "outcome": outcome})
        self.reading = CheckpointColumns(outcome, self.columns.add)
        # A checkpoint that is named keeps every decision: whether it chooses is known at the end, and may
        # change when the log's retention removes what was read before.
        self.reading.chooses = bool(about)


def _chosen(points: dict[str, _Point], wanted: str | None) -> tuple[str, _Point]:
    if wanted is not None:
        return wanted, points[wanted]
    choosing = [name for name, point in points.items() if point.reading.chooses]
    if len(choosing) == 1:
        return choosing[0], points[choosing[0]]
    if not choosing:
        raise DataError("the log holds no decision of an action; give the log of an action checkpoint")
    names = ", ".join(sorted(choosing))
    raise DataError(
        f"the log holds decisions of several action checkpoints ({names}); name one: --checkpoint"
    )


def _joined(
    checkpoint: str,
    columns: JoinColumns,
    shelf: BundleShelf,
    settings: JoinSettings,
    as_of_ms: int,
    findings: Findings,
) -> Joined:
    notes = columns.table("notes")
    for name in pc.unique(notes["name"]).to_pylist():
        examples = notes.filter(pc.equal(notes["name"], name))["example"]
        findings.add_rows(name, len(examples), (one.as_py() for one in examples))
    since_us = 0 if settings.days is None else as_of_ms * 1000 - round(settings.days * 86_400e6)
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
        ids = outcomes.decision_id.filter(rows)
        first = ids.take(pc.array_sort_indices(ids)[:_EXAMPLES])
        findings.add_rows(name, len(ids), first.to_pylist())


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


def _note_damage(damage: Sequence[LogFinding], findings: Findings) -> None:
    for one in damage:
        name = _DAMAGE.get(one.kind)
        if name is not None:
            lost = one.lost[1] - one.lost[0] + 1 if one.lost else 1
            findings.add(name, one.detail)
            findings.add(name, count=lost - 1)
