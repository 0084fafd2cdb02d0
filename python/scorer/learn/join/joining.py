"""The join: one pass over a log, decisions and outcomes of one checkpoint, as known at a moment.

The same log and the same moment give the same experience: records from after the
moment are not seen, though they may be there, so a join can be repeated later.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from scorer.learn.errors import DataError
from scorer.learn.experience import Experience, State
from scorer.learn.join.assembling import assemble, known_ms
from scorer.learn.join.decisions import Decisions
from scorer.learn.join.findings import LATER, Finding, Findings
from scorer.learn.join.maturity import windows
from scorer.learn.join.rates import Dependence, Rate, dependence, rates, windows_passed
from scorer.learn.join.settings import JoinSettings
from scorer.log import LogScan, OutcomeJoin, scan
from scorer.log.scanning import UNKNOWN
from scorer.log.tables import is_action

if TYPE_CHECKING:
    from scorer.log import BundleShelf
    from scorer.log.reading import Advance
    from scorer.v1.log_pb2 import DecisionRecord, OutcomeRecord

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
    findings: tuple[Finding, ...]
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
            "findings": [one.as_dict() for one in self.findings if one.name != LATER],
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
    advance: Advance | None = None,
) -> Joined:
    """Joins the decisions of an action checkpoint with their outcomes.

    Args:
        directory: the log.
        shelf: the bundles that it speaks of.
        settings: `[join]`; None: the defaults.
        as_of_ms: the moment, Unix time: what the log holds from later is not seen.
        checkpoint: whose decisions; None: the only one that chooses actions.
        advance: told bytes read and to be read.

    Raises:
        LogError: the directory is no log.
        DataError: there is no such checkpoint, several to choose from, or no decision that can be used.
    """
    settings = settings or JoinSettings()
    findings = Findings()
    since = 0 if settings.days is None else as_of_ms * 1000 - round(settings.days * 86_400e6)
    entries = scan(directory, checkpoint=checkpoint, advance=advance)
    points: dict[str, _Point] = {}

    def point_of(name: str) -> _Point:
        if name not in points:
            points[name] = _Point(shelf, settings, as_of_ms, since)
        return points[name]

    for sequence, kind, record in entries:
        if kind == "decision":
            point_of(record.checkpoint).decision(sequence, record)
        elif kind == "outcome":
            point_of(record.checkpoint).outcome(sequence, record)
        elif kind == UNKNOWN:
            findings.add("unknown record", f"sequence {sequence}")
    _note_damage(entries, findings)
    name, point = _chosen(points, checkpoint)
    point.decisions.finish()
    return _joined(name, point, settings, as_of_ms, findings)


class _Point:
    """One checkpoint while the log is read."""

    def __init__(self, shelf: BundleShelf, settings: JoinSettings, as_of_ms: int, since_us: int) -> None:
        self.findings = Findings()
        self.decisions = Decisions(shelf, self.findings, as_of_ms * 1000, since_us)
        self.outcomes = OutcomeJoin()
        self.chooses = False
        self._kind, self._until_ms = settings.outcome, as_of_ms

    def decision(self, sequence: int, record: DecisionRecord) -> None:
        """Takes the next decision in; those of a checkpoint that gives scores are only counted."""
        self.chooses |= is_action(record)
        if self.chooses:
            self.decisions.add(sequence, record)
        else:
            self.findings.add("no action", record.decision_id)

    def outcome(self, sequence: int, record: OutcomeRecord) -> None:
        """Takes the next outcome in."""
        if record.kind != self._kind:
            self.findings.add("outcome of another kind", record.kind)
        elif known_ms(record.received_at_us, record.occurred_at_ms) > self._until_ms:
            self.findings.add(LATER)
        elif not math.isfinite(record.value):
            self.findings.add("outcome that is no number", record.decision_id)
        else:
            self.outcomes.add(sequence, record)


def _chosen(points: dict[str, _Point], wanted: str | None) -> tuple[str, _Point]:
    choosing = [name for name, point in points.items() if point.chooses]
    if wanted is not None:
        if wanted in choosing:
            return wanted, points[wanted]
        raise DataError(
            f'the log holds no decision of an action at checkpoint "{wanted}"; `scorer log stat` lists'
        )
    if len(choosing) == 1:
        return choosing[0], points[choosing[0]]
    if not choosing:
        raise DataError("the log holds no decision of an action; give the log of an action checkpoint")
    names = ", ".join(sorted(choosing))
    raise DataError(
        f"the log holds decisions of several action checkpoints ({names}); name one: --checkpoint"
    )


def _joined(
    checkpoint: str, point: _Point, settings: JoinSettings, as_of_ms: int, findings: Findings
) -> Joined:
    newest = point.decisions.newest
    for one in point.findings.rows():
        findings.add(one.name, count=one.count - len(one.examples))
        findings.add_all(one.name, one.examples)
    if newest is None:
        why = "; ".join(f"{one.count} {one.name}" for one in findings.rows()) or "there is none"
        raise DataError(f'no decision of "{checkpoint}" can be used: {why}')
    of = windows(newest.actions, settings)
    for name in of.unused:
        findings.add("family without actions", name)
    experience = assemble(
        checkpoint, point.decisions.blocks, point.outcomes, newest, settings, as_of_ms, of, findings
    )
    passed = windows_passed(experience, as_of_ms, of)
    families = rates(experience, of.family[experience.action], of.names, passed)
    actions = rates(experience, experience.action, experience.actions, passed)
    depends = dependence(actions)
    if depends is not None and depends.p < _DEPENDS:
        findings.add(
            "missingness depends on the action", f"Cramer's V {depends.cramers_v:.3f}, p {depends.p:.1g}"
        )
    _note_outcomes(checkpoint, point, findings)
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


def _note_outcomes(checkpoint: str, point: _Point, findings: Findings) -> None:
    outcomes = point.outcomes
    orphans = {name for _, name, _, _, _ in outcomes if not point.decisions.knows(name)}
    findings.add_all("outcome without decision", sorted(orphans))
    findings.add("duplicate outcome", count=outcomes.duplicates)
    findings.add("revised outcome", count=outcomes.superseded)
    findings.add_all("conflicting outcomes", map(str, outcomes.conflicts))


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


def _note_damage(entries: LogScan, findings: Findings) -> None:
    for one in entries.findings:
        name = _DAMAGE.get(one.kind)
        if name is not None:
            lost = one.lost[1] - one.lost[0] + 1 if one.lost else 1
            findings.add(name, one.detail)
            findings.add(name, count=lost - 1)
