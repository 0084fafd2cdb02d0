"""What a source knows of the decisions of one checkpoint and their outcomes of all kinds, as of a moment.

Of each decision the hash of its id is kept, with its time and its segments, so that ten million decisions fit
into half a gigabyte. Two ids with one 64-bit hash would count as one decision; among ten million decisions
the probability of any such pair is 3 in a million.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scorer.errors import LogError
from scorer.learn.errors import DataError
from scorer.learn.join.findings import EXAMPLES, LATER, Findings, JoinFinding
from scorer.learn.join.hashing import Hashes, id_hashes, is_among
from scorer.learn.join.reading import DAMAGE
from scorer.learn.labels.segments import SegmentReader
from scorer.log.proof import TOKEN, Unproven, may_count, precedence
from scorer.log.source.interface import SourceQuery
from scorer.stats.arrays import Bools, Floats, Ints

if TYPE_CHECKING:
    from scorer.log import BundleShelf, ReaderKey
    from scorer.log.reading import Advance
    from scorer.log.source.interface import DecisionSource, SourceBatch

Clock = Literal["received", "occurred"]
"""Whether a delay ends when the report was received, or when the outcome is stated to have occurred."""

_SKEW_MS: Final = 60_000
_SLACK_US: Final = 3_600_000_000
"""Reports are read from an hour before the first decision on, because clocks differ."""


@dataclass(frozen=True)
class HistoryQuery:
    """Which decisions and reports are read.

    Attributes:
        checkpoint: Name of the checkpoint.
        as_of_ms: The moment, Unix time. Later records are not used.
        since_ms: Time of the first decision, Unix time; 0: the first one of the logs.
        until_ms: Time before which decisions are used, Unix time; None: the moment.
        segments: Names of features that are categories or flags, or of fields; see `SegmentReader`.
        clock: When an outcome counts as known.
        unproven: Whether an unproven report counts if there is no proven one.
        rows: Records of a log that are in memory at a time.
    """

    checkpoint: str
    as_of_ms: int
    since_ms: int = 0
    until_ms: int | None = None
    segments: tuple[str, ...] = ()
    clock: Clock = "received"
    unproven: Unproven = "exclude"
    rows: int = 8_192


@dataclass(frozen=True)
class SegmentColumn:
    """The values of one segment.

    Attributes:
        name: Name of the feature or field.
        codes: `[n]` position in `values` of each decision.
        values: Names of the values.
    """

    name: str
    codes: npt.NDArray[np.int32]
    values: tuple[str, ...]


@dataclass(frozen=True)
class ReportedKinds:
    """The reports that count, one row for each decision and kind, in the order of decisions and kinds.

    Attributes:
        decision: `[m]` row of the decision.
        kind: `[m]` position in `Histories.kinds`.
        value: `[m]` value of the report that counts.
        first_ms: `[m]` when the first report of the kind became known, Unix time.
        known_ms: `[m]` when the report that counts became known.
        changed: `[m]` whether the value differs from that of the first report.
    """

    decision: Ints
    kind: npt.NDArray[np.int16]
    value: Floats
    first_ms: Ints
    known_ms: Ints
    changed: Bools

    def __len__(self) -> int:
        return len(self.decision)


@dataclass(frozen=True)
class Histories:
    """Decisions of a checkpoint in the order of time, and what was reported about them.

    Attributes:
        query: What was read.
        hashes: `[n]` of the decisions' ids.
        time_ms: `[n]` when each was decided, Unix time.
        log: `[n]` position in `logs` of the record that counts.
        sequence: `[n]` sequence of that record.
        segments: A column for each segment of the query.
        kinds: Names of the kinds of outcomes that were reported, in alphabetical order.
        reports: The reports that count.
        logs: Names of the logs.
        findings: Everything that was wrong, by name.
    """

    query: HistoryQuery
    hashes: Hashes
    time_ms: Ints
    log: npt.NDArray[np.int32]
    sequence: Ints
    segments: tuple[SegmentColumn, ...]
    kinds: tuple[str, ...]
    reports: ReportedKinds
    logs: tuple[str, ...]
    findings: tuple[JoinFinding, ...]

    def __len__(self) -> int:
        return len(self.time_ms)

    def values_of(self, segment: str) -> npt.NDArray[Any]:
        """Return the value of a segment of each decision, `[n]` texts."""
        column = next(one for one in self.segments if one.name == segment)
        return np.array(column.values, dtype=object)[column.codes]

    def take(self, chosen: Bools) -> Histories:
        """Return the decisions that are chosen, with their reports.

        Args:
            chosen: ``[n]`` whether a decision is taken.

        Raises:
            DataError: None is chosen.
        """
        if not chosen.any():
            raise DataError(f'no decision of "{self.query.checkpoint}" is left')
        to, reports = np.cumsum(chosen) - 1, self.reports
        own = chosen[reports.decision]
        return replace(
            self,
            hashes=self.hashes[chosen],
            time_ms=self.time_ms[chosen],
            log=self.log[chosen],
            sequence=self.sequence[chosen],
            segments=tuple(replace(one, codes=one.codes[chosen]) for one in self.segments),
            reports=ReportedKinds(
                to[reports.decision[own]],
                reports.kind[own],
                reports.value[own],
                reports.first_ms[own],
                reports.known_ms[own],
                reports.changed[own],
            ),
        )

    @property
    def age_ms(self) -> Ints:
        """`[n]` how long each decision was observed, in milliseconds."""
        return np.maximum(self.query.as_of_ms - self.time_ms, 0)


def read_histories(
    source: DecisionSource,
    shelf: BundleShelf,
    query: HistoryQuery,
    *,
    advance: Advance | None = None,
    reader_key: ReaderKey | None = None,
) -> Histories:
    """Read the decisions of a checkpoint and the outcomes that were reported until a moment.

    A log that cannot be read is a finding while another one can be read.

    Args:
        source: The logs.
        shelf: The bundles of the decisions, which define the features of segments.
        query: What to read.
        advance: Called for each log with the bytes read so far and the total bytes.
        reader_key: Key that decrypts sensitive features.

    Raises:
        LogError: No log can be read.
        DataError: There is no decision, or a segment is not a category, a flag or a field of the record.
    """
    findings, segments = Findings(), SegmentReader(query.segments, shelf)
    since_us = max(query.since_ms * 1000 - _SLACK_US, 0)
    wanted = SourceQuery(query.checkpoint, since_us, query.rows, reader_key)
    collected = _Collected(segments)
    failed = []
    for place, log in enumerate(source.logs):
        prefix = f"{log.name}: " if len(source.logs) > 1 else ""
        try:
            read = log.read(wanted, None, advance)
            for batch in read:
                collected.add(place, batch)
        except (LogError, OSError) as error:
            failed.append(str(error))
            findings.add("unreadable log", f"{log.name}: {error}")
            collected.withdraw()
            continue
        collected.withdraw()
        for one in read.findings:
            if (name := DAMAGE.get(one.kind)) is not None:
                lost = one.lost[1] - one.lost[0] + 1 if one.lost else 1
                findings.add(name, prefix + one.detail, lost)
    if len(failed) == len(source.logs):
        raise LogError("; ".join(failed))
    findings.add("unknown record", count=collected.unknown)
    return _assemble(query, collected, tuple(log.name for log in source.logs), findings)


@dataclass
class _Collected:
    """Columns of the records that were read, in chunks."""

    segments: SegmentReader
    decisions: list[tuple[npt.NDArray[Any], ...]] = field(default_factory=list)
    outcomes: list[tuple[npt.NDArray[Any], ...]] = field(default_factory=list)
    deliveries: list[tuple[npt.NDArray[Any], ...]] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    examples: dict[int, str] = field(default_factory=dict)
    unknown: int = 0
    _withdrawn: list[int] = field(default_factory=list)
    _begin: tuple[int, int, int] = (0, 0, 0)

    def add(self, place: int, batch: SourceBatch) -> None:
        """Take the next rows of the log at a place."""
        rows = batch.rows
        if batch.kind == "unknown":
            self.unknown += len(rows)
        elif batch.kind == "withdrawals":
            self._withdrawn += rows["withdrawn"].to_pylist()
        elif batch.kind == "decisions":
            log = np.full(len(rows), place, np.int32)
            hashes, sequence = id_hashes(rows["decision_id"]), _integers(rows["sequence"])
            self.decisions.append(
                (hashes, _integers(rows["decided_at_us"]), log, sequence, *self.segments.codes(rows))
            )
        elif batch.kind == "outcomes":
            self._add_outcomes(place, rows)
        else:
            delivered = np.asarray(rows["delivered"].to_numpy(zero_copy_only=False), bool)
            self.deliveries.append(
                (
                    id_hashes(rows["decision_id"]),
                    _integers(rows["decided_at_us"]),
                    delivered,
                    _integers(rows["sequence"]),
                )
            )

    def withdraw(self) -> None:
        """Remove the records of the log that ends here which later records withdrew."""
        begin, withdrawn = self._begin, np.array(self._withdrawn, np.int64)
        for chunks, first, column in (
            (self.decisions, begin[0], 3),
            (self.outcomes, begin[1], 8),
            (self.deliveries, begin[2], 3),
        ):
            for at in range(first, len(chunks)):
                stays = ~np.isin(chunks[at][column], withdrawn)
                if not stays.all():
                    chunks[at] = tuple(one[stays] for one in chunks[at])
        self._withdrawn = []
        self._begin = (len(self.decisions), len(self.outcomes), len(self.deliveries))

    def _add_outcomes(self, place: int, rows: pa.Table) -> None:
        coded = rows["kind"].combine_chunks()
        names = coded.dictionary.to_pylist()
        code = np.array([self.kinds.setdefault(name, len(self.kinds)) for name in names] or [0], np.int16)
        self.outcomes.append(
            (
                id_hashes(rows["decision_id"]),
                code[coded.indices.to_numpy()] if len(rows) else np.empty(0, np.int16),
                _integers(rows["revision"]),
                np.asarray(rows["value"].to_numpy(), np.float64),
                _integers(rows["occurred_at_ms"]),
                _integers(rows["received_at_us"]),
                np.asarray(rows["proof"].to_numpy(), np.int8),
                np.full(len(rows), place, np.int32),
                _integers(rows["sequence"]),
            )
        )


_OUTCOME_TYPES: Final = (
    np.uint64, np.int16, np.int64, np.float64, np.int64, np.int64, np.int8, np.int32, np.int64,
)  # fmt: skip


def _assemble(
    query: HistoryQuery, collected: _Collected, logs: tuple[str, ...], findings: Findings
) -> Histories:
    kinds = tuple(sorted(collected.kinds))
    outcomes = _joined(collected.outcomes, _OUTCOME_TYPES)
    # Codes in the order of the names do not depend on the order of the logs.
    to = np.array([kinds.index(name) for name in collected.kinds] or [0], np.int16)
    outcomes[1] = to[outcomes[1]]
    count = len(query.segments)
    types = (np.uint64, np.int64, np.int32, np.int64, *[np.int32] * count)
    decisions = _joined(collected.decisions, types)
    later = decisions[1] > query.as_of_ms * 1000
    findings.add(LATER, count=int(later.sum()))
    decisions = [column[~later] for column in decisions]
    tokens = np.unique(outcomes[0][outcomes[6] == TOKEN])
    gone = _undelivered(decisions, collected.deliveries) & ~is_among(decisions[0], tokens)
    findings.add("undelivered decision", count=int(gone.sum()))
    decisions = [column[~gone] for column in decisions]
    # The first record of an id in order of time counts.
    order = np.lexsort((decisions[3], decisions[2], decisions[1], decisions[0]))
    first = _begins(decisions[0][order])
    findings.add("repeated decision", count=int(len(order) - first.sum()))
    known = decisions[0][order[first]]
    end = query.as_of_ms + 1 if query.until_ms is None else query.until_ms
    time_ms = decisions[1] // 1000
    rows = order[first]
    rows = rows[(time_ms[rows] >= query.since_ms) & (time_ms[rows] < end)]
    rows = rows[np.lexsort((decisions[0][rows], time_ms[rows]))]
    if not len(rows):
        raise DataError(
            f'no decision of "{query.checkpoint}" lies in the window; `scorer log stat` lists checkpoints, '
            "and --since, --until and --as-of set the window"
        )
    hashes, time_ms = decisions[0][rows], time_ms[rows]
    reports = _reports(query, outcomes, kinds, hashes, time_ms, known, findings)
    return Histories(
        query=query,
        hashes=hashes,
        time_ms=time_ms,
        log=decisions[2][rows],
        sequence=decisions[3][rows],
        segments=tuple(
            SegmentColumn(name, *collected.segments.named(name, decisions[4 + at][rows]))
            for at, name in enumerate(query.segments)
        ),
        kinds=kinds,
        reports=reports,
        logs=logs,
        findings=findings.rows(),
    )


def _reports(
    query: HistoryQuery,
    outcomes: list[npt.NDArray[Any]],
    kinds: Sequence[str],
    hashes: Hashes,
    time_ms: Ints,
    known: Hashes,
    findings: Findings,
) -> ReportedKinds:
    """Choose the report that counts for each decision and kind, by the rules of the decision log.

    Args:
        query: What was read.
        outcomes: Columns of all reports.
        kinds: Names of the kinds.
        hashes: `[n]` of the decisions, in the order of time.
        time_ms: `[n]` of the decisions.
        known: Hashes of all decisions of the logs, in ascending order, also of those outside the window.
        findings: Receives what is left out.
    """
    at_ms = np.where(outcomes[5] != 0, outcomes[5] // 1000, outcomes[4])
    seen = at_ms <= query.as_of_ms
    findings.add(LATER, count=int((~seen).sum()))
    finite = np.isfinite(outcomes[3])
    findings.add("outcome that is no number", count=int((seen & ~finite).sum()))
    proven = may_count(outcomes[6], query.unproven)
    findings.add("unproven outcome", count=int((seen & ~proven).sum()))
    if query.since_ms == 0:
        findings.add("outcome without decision", count=int((seen & ~is_among(outcomes[0], known)).sum()))
    by_hash = np.argsort(hashes, kind="stable")
    place = np.minimum(np.searchsorted(hashes[by_hash], outcomes[0]), len(hashes) - 1)
    own = hashes[by_hash][place] == outcomes[0]
    rows = np.flatnonzero(seen & finite & proven & own)
    decision, kind = by_hash[place[rows]], outcomes[1][rows]
    rank = precedence(outcomes[6][rows], outcomes[2][rows])
    value, occurred, report_ms = outcomes[3][rows], outcomes[4][rows], at_ms[rows]
    early = (occurred > 0) & (occurred < time_ms[decision] - _SKEW_MS)
    findings.add_rows(
        "outcome before its decision", int(early.sum()), [kinds[code] for code in np.unique(kind[early])]
    )
    if query.clock == "occurred":
        report_ms = np.where(occurred > 0, np.minimum(occurred, report_ms), report_ms)
    report_ms = np.maximum(report_ms, time_ms[decision])
    order = np.lexsort((outcomes[8][rows], outcomes[7][rows], rank, kind, decision))
    decision, kind, rank = decision[order], kind[order], rank[order]
    value, report_ms = value[order], report_ms[order]
    key = _begins(decision, kind)
    revision = key | _begins(rank)
    # The first report of the highest revision of each key counts.
    first_of_revision = np.flatnonzero(revision)[np.cumsum(revision) - 1] if len(order) else order
    last = np.ones(len(order), dtype=bool)
    last[:-1] = key[1:]
    counting = first_of_revision[last]
    begins = np.flatnonzero(key)
    differs = ~revision & (value != value[first_of_revision])
    findings.add("duplicate outcome", count=int((~revision & ~differs).sum()))
    findings.add("revised outcome", count=int(revision.sum()) - len(counting))
    examples = [
        f"{kinds[kind[at]]}: {value[first_of_revision[at]]:g}, later {value[at]:g}"
        for at in np.flatnonzero(differs)[:EXAMPLES].tolist()
    ]
    findings.add_rows("conflicting outcomes", int(differs.sum()), examples)
    first_ms = np.minimum.reduceat(report_ms, begins) if len(begins) else report_ms
    earliest = _earliest(report_ms, begins)
    return ReportedKinds(
        decision=decision[begins].astype(np.int64),
        kind=kind[begins],
        value=value[counting],
        first_ms=first_ms,
        known_ms=report_ms[counting],
        changed=value[earliest] != value[counting],
    )


def _earliest(report_ms: Ints, begins: Ints) -> Ints:
    """Return the row of the earliest report of each group, `[groups]`."""
    if not len(begins):
        return begins
    group = np.repeat(np.arange(len(begins)), np.diff([*begins.tolist(), len(report_ms)]))
    order = np.lexsort((report_ms, group))
    return order[begins]


def _undelivered(decisions: list[npt.NDArray[Any]], deliveries: list[tuple[npt.NDArray[Any], ...]]) -> Bools:
    """Return which records' replies did not reach their caller, `[n]`."""
    marks: Mapping[bool, set[tuple[int, int]]] = {False: set(), True: set()}
    for hashes, times, delivered, _ in deliveries:
        for one, at, told in zip(hashes.tolist(), times.tolist(), delivered.tolist(), strict=True):
            marks[told].add((one, at))
    lost = marks[False] - marks[True]
    gone = np.zeros(len(decisions[0]), dtype=bool)
    if lost:
        of = np.unique(np.array([one for one, _ in lost], np.uint64))
        rows = np.flatnonzero(is_among(decisions[0], of))
        pairs = zip(decisions[0][rows].tolist(), decisions[1][rows].tolist(), strict=True)
        gone[rows] = [pair in lost for pair in pairs]
    return gone


def _begins(*columns: npt.NDArray[Any]) -> Bools:
    """Return which rows differ from the row before them, `[n]`; the first one does."""
    new = np.ones(len(columns[0]), dtype=bool)
    new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return new


def _joined(chunks: list[tuple[npt.NDArray[Any], ...]], types: Sequence[Any]) -> list[npt.NDArray[Any]]:
    return [
        np.concatenate([np.empty(0, of), *(chunk[at] for chunk in chunks)]).astype(of, copy=False)
        for at, of in enumerate(types)
    ]


def _integers(values: Any) -> Ints:
    return np.asarray(values.to_numpy(), dtype=np.int64)
