"""The join: one pass over a log, decisions and outcomes of one checkpoint, as known at a moment.

The same log and the same moment give the same experience: records from after the
moment are not seen, though they may be there, so a join can be repeated later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scorer.learn.errors import DataError
from scorer.learn.experience import Experience, State
from scorer.learn.join.catalogue import Layout, carry_columns, map_actions
from scorer.learn.join.decisions import Block, Decisions
from scorer.learn.join.findings import LATER, Finding, Findings
from scorer.learn.join.maturity import Windows, states, windows
from scorer.learn.join.rates import Dependence, Rate, dependence, rates, windows_passed
from scorer.learn.join.settings import JoinSettings
from scorer.log import LogReader, OutcomeJoin
from scorer.log.tables import is_action

if TYPE_CHECKING:
    from scorer.log import BundleShelf
    from scorer.log.reading import Advance
    from scorer.v1.log_pb2 import DecisionRecord, OutcomeRecord

_WEEK_MS = 7 * 86_400_000
_SKEW_MS = 60_000
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
    reader = LogReader(directory)
    points: dict[str, _Point] = {}

    def point_of(name: str) -> _Point:
        if name not in points:
            points[name] = _Point(shelf, settings, as_of_ms, since)
        return points[name]

    for sequence, record in reader.records(advance):
        kind = record.WhichOneof("record")
        if kind is None:
            findings.add("unknown record", f"sequence {sequence}")
        elif kind == "decision":
            one = record.decision
            if checkpoint in {None, one.checkpoint}:
                point_of(one.checkpoint).decision(sequence, one)
        elif kind == "outcome" and checkpoint in {None, record.outcome.checkpoint}:
            point_of(record.outcome.checkpoint).outcome(sequence, record.outcome)
    _note_damage(reader, findings)
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


def known_ms(received_at_us: int, occurred_at_ms: int) -> int:
    """When an outcome became known: when it was received; where the log does not say, when it occurred."""
    return received_at_us // 1000 if received_at_us else occurred_at_ms


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
    experience = _experience(checkpoint, point, newest, settings, as_of_ms, of, findings)
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


def _experience(
    checkpoint: str,
    point: _Point,
    newest: Layout,
    settings: JoinSettings,
    as_of_ms: int,
    of: Windows,
    findings: Findings,
) -> Experience:
    blocks = [_carried(block, newest, findings) for block in point.decisions.blocks]
    blocks = [block for block in blocks if len(block)]
    if not blocks:
        raise DataError(f'no decision of "{checkpoint}" fits the newest bundle; join an earlier moment')
    time_us = np.concatenate([block.time_us for block in blocks])
    order = np.lexsort((np.concatenate([block.sequence for block in blocks]), time_us))

    def column(name: str) -> npt.NDArray[Any]:
        return np.concatenate([np.asarray(getattr(block, name)) for block in blocks])[order]

    ids, time_ms, action = column("decision_id"), time_us[order] // 1000, column("action")
    value, settled_ms = _outcomes(checkpoint, ids, time_ms, point.outcomes, findings)
    state = states(time_ms, action, ~np.isnan(value), as_of_ms, of)
    settled = state == State.SETTLED
    # What has to wait is known when its window ends: training must not learn from it earlier.
    ends = np.where(of.waits[action], time_ms + of.window_ms[action], settled_ms)
    settled_ms = np.maximum(settled_ms, ends)
    bundles = tuple(dict.fromkeys(block.layout.digest for block in blocks))
    names = np.concatenate([np.full(len(block), bundles.index(block.layout.digest)) for block in blocks])
    lane_names = column("lane")
    lanes, lane = np.unique(lane_names, return_inverse=True)
    return Experience(
        decision_id=ids.astype(np.str_),
        entity=column("entity").astype(np.str_),
        time_ms=time_ms,
        settled_ms=np.where(settled, settled_ms, -1),
        context=column("context"),
        eligible=column("eligible"),
        pmf=column("pmf"),
        action=action,
        propensity=column("propensity"),
        reward=np.where(settled, (value >= settings.threshold).astype(np.float64), np.nan),
        state=state,
        bundle=names[order].astype(np.int64),
        lane=lane.astype(np.int64),
        bundles=bundles,
        lanes=tuple(str(name) for name in lanes),
        actions=tuple(action.id for action in newest.actions),
    )


def _carried(block: Block, newest: Layout, findings: Findings) -> Block:
    """A block in the newest bundle's layout; what cannot be carried over is noted and left out."""
    if block.layout.digest == newest.digest:
        return block
    actions = map_actions(block.layout.actions, newest.actions)
    gone, other = actions.to[block.action] < 0, actions.redefined[block.action]
    context, fits = carry_columns(block.context, block.layout.features, newest.features)
    stays = ~gone & ~other & fits
    for name, rows in (
        ("action left the catalogue", gone),
        ("action was redefined", ~gone & other),
        ("context cannot be carried over", ~gone & ~other & ~fits),
    ):
        findings.add_all(name, (block.decision_id[at] for at in np.flatnonzero(rows)))
    at = np.flatnonzero(stays)
    own = np.flatnonzero(actions.stays)
    pmf = np.zeros((len(at), actions.width), dtype=np.float32)
    eligible = np.zeros((len(at), actions.width), dtype=bool)
    mass = block.pmf[np.ix_(at, own)].astype(np.float64).sum(axis=1)
    whole = bool((block.pmf[at][:, ~actions.stays] == 0).all())
    # What stays of a decision is a draw among the actions that stay.
    scale = np.ones(len(at)) if whole else mass
    pmf[:, actions.to[own]] = block.pmf[np.ix_(at, own)] / scale[:, None]
    eligible[:, actions.to[own]] = block.eligible[np.ix_(at, own)]
    if not actions.is_identity:
        findings.add("catalogue changed", f"{block.layout.digest[:19]} to {newest.digest[:19]}", len(at))
    return Block(
        layout=block.layout,
        sequence=block.sequence[at],
        decision_id=[block.decision_id[row] for row in at],
        entity=[block.entity[row] for row in at],
        lane=[block.lane[row] for row in at],
        time_us=block.time_us[at],
        context=context[at],
        eligible=eligible,
        pmf=pmf,
        action=actions.to[block.action[at]],
        propensity=block.propensity[at] / scale,
    )


def _outcomes(
    checkpoint: str,
    ids: Sequence[str] | npt.NDArray[Any],
    time_ms: npt.NDArray[np.int64],
    outcomes: OutcomeJoin,
    findings: Findings,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """`[n]` the value that counts (NaN: none) and when it became known."""
    value, known = np.full(len(ids), np.nan), np.full(len(ids), -1, dtype=np.int64)
    for at, name in enumerate(ids):
        for report in outcomes.of(checkpoint, str(name)).values():
            value[at] = report.value
            known[at] = max(known_ms(report.received_at_us, report.occurred_at_ms), time_ms[at])
            if 0 < report.occurred_at_ms < time_ms[at] - _SKEW_MS:
                findings.add("outcome before its decision", str(name))
    return value, known


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


def _note_damage(reader: LogReader, findings: Findings) -> None:
    for one in reader.findings:
        name = _DAMAGE.get(one.kind)
        if name is not None:
            lost = one.lost[1] - one.lost[0] + 1 if one.lost else 1
            findings.add(name, one.detail)
            findings.add(name, count=lost - 1)
