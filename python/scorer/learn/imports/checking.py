"""The check of a whole file of outcomes, by itself and against the logs of the servers.

Of each row about 40 bytes are held in memory, and the file is read again when it is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scorer.learn.errors import DataError
from scorer.learn.imports.files import file_rows
from scorer.learn.imports.findings import ImportFinding, ImportFindings
from scorer.learn.imports.rows import AHEAD_MS, BadRowError, ImportDefaults, OutcomeRow, parse_row
from scorer.learn.join.hashing import Hashes, id_hashes
from scorer.log.proof import UNPROVEN
from scorer.log.source.interface import SourceQuery
from scorer.stats.arrays import Bools, Ints

if TYPE_CHECKING:
    from scorer.log.reading import Advance
    from scorer.log.source.interface import DecisionSource

MOST_ROWS: Final = 10_000_000
"""Limit on the rows of a file, so that the memory of a check is below half a gigabyte."""
SEND, SKIP, REJECT = 0, 1, 2
_CHUNK: Final = 8_192
_BITS: Final = 32
_NOWHERE: Final = -1


@dataclass(frozen=True)
class OutcomeFile:
    """A file of outcomes for one checkpoint.

    Attributes:
        path: The file.
        checkpoint: Checkpoint of the decisions.
        defaults: What absent values are, and which kinds are allowed.
        columns: Name of the file's column by field.
    """

    path: Path
    checkpoint: str
    defaults: ImportDefaults
    columns: Mapping[str, str]

    def rows(self) -> Iterator[tuple[int, OutcomeRow | BadRowError]]:
        """Yield the number of each row, and its outcome or what is wrong with it.

        Raises:
            DataError: The file cannot be read.
        """
        for number, fields in file_rows(self.path, self.columns):
            if isinstance(fields, str):
                yield number, BadRowError("unreadable row", fields)
                continue
            try:
                yield number, parse_row(fields, self.defaults)
            except BadRowError as error:
                yield number, error


@dataclass(frozen=True)
class ImportPlan:
    """What is done with each row of a file.

    Attributes:
        action: `[n]` `SEND`, `SKIP` or `REJECT`.
        revision: `[n]` revision to report.
        log: `[n]` position of the log that has the decision; -1: not known.
        findings: What is wrong, by rule.
        against_logs: Whether the rows were compared with logs.
    """

    action: npt.NDArray[np.int8]
    revision: Ints
    log: npt.NDArray[np.int16]
    findings: tuple[ImportFinding, ...]
    against_logs: bool

    @property
    def rejected(self) -> int:
        """Number of rows that break a rule."""
        return int((self.action == REJECT).sum())

    def counts(self) -> dict[str, int]:
        """Return the number of rows, and of those that are reported, skipped and rejected."""
        names = {SEND: "reported", SKIP: "skipped", REJECT: "rejected"}
        found = {name: int((self.action == code).sum()) for code, name in names.items()}
        return {"rows": len(self.action), **found}


@dataclass
class _Rows:
    """The rows of a file in columns, `[n]` each."""

    hashes: Hashes
    kind: npt.NDArray[np.int16]
    value: npt.NDArray[np.float64]
    revision: Ints
    given: Bools
    occurred: Ints
    action: npt.NDArray[np.int8]


def check_file(
    file: OutcomeFile,
    source: DecisionSource | None,
    *,
    revise: bool = False,
    advance: Advance | None = None,
) -> ImportPlan:
    """Check all rows of a file.

    Args:
        file: The file.
        source: The logs of the servers; None: rows are not compared with logs.
        revise: Whether a value that differs from the newest one of the log becomes its next revision, where
            the file gives no revision.
        advance: Called for each log with the bytes read so far and the total bytes.

    Raises:
        DataError: The file cannot be read, has no rows or too many, or `revise` lacks logs.
        LogError: A log cannot be read.
    """
    if revise and source is None:
        raise DataError("--revise compares with the recorded values; give the logs with --log")
    findings = ImportFindings()
    rows, kinds = _read(file, findings)
    log = np.full(len(rows.hashes), _NOWHERE, np.int16)
    _check_repeats(rows, findings)
    if source is not None:
        _Recorded(file, source, rows, kinds, advance).apply(revise, log, findings)
    return ImportPlan(rows.action, rows.revision, log, findings.rows(), source is not None)


def _read(file: OutcomeFile, findings: ImportFindings) -> tuple[_Rows, dict[str, int]]:
    kinds: dict[str, int] = {}
    chunks: list[list[npt.NDArray[Any]]] = []
    ids: list[str] = []
    columns: list[tuple[int, float, int, bool, int, int]] = []

    def close() -> None:
        if columns:
            arrays = [np.array(column) for column in zip(*columns, strict=True)]
            chunks.append([id_hashes(pa.array(ids, pa.large_string())), *arrays])
            ids.clear()
            columns.clear()

    for number, row in file.rows():
        if number > MOST_ROWS:
            raise DataError(f'"{file.path}" has more than {MOST_ROWS:,} rows; split it into several files')
        if isinstance(row, BadRowError):
            findings.add(row.rule, number, str(row))
            ids.append("")
            columns.append((0, 0.0, 0, False, 0, REJECT))
        else:
            if not row.token:
                findings.add("without a token", number)
            ids.append(row.decision_id)
            code = kinds.setdefault(row.kind, len(kinds))
            columns.append((code, row.value, row.revision, row.has_revision, row.occurred_at_ms, SEND))
        if len(ids) == _CHUNK:
            close()
    close()
    if not chunks:
        raise DataError(f'"{file.path}" has no rows; there is nothing to import')
    if len(kinds) > np.iinfo(np.int16).max:
        raise DataError(f'"{file.path}" has {len(kinds):,} kinds of outcomes; is "kind" the right column?')
    types = (np.uint64, np.int16, np.float64, np.int64, np.bool_, np.int64, np.int8)
    joined = [np.concatenate([chunk[at].astype(of) for chunk in chunks]) for at, of in enumerate(types)]
    return _Rows(*joined), kinds


def _check_repeats(rows: _Rows, findings: ImportFindings) -> None:
    """Skip rows that repeat an earlier one, and reject rows that contradict each other."""
    at = np.flatnonzero(rows.action == SEND)
    order = at[np.lexsort((at, rows.revision[at], rows.kind[at], rows.hashes[at]))]
    if not len(order):
        return
    new = np.ones(len(order), dtype=bool)
    new[1:] = (
        (rows.hashes[order[1:]] != rows.hashes[order[:-1]])
        | (rows.kind[order[1:]] != rows.kind[order[:-1]])
        | (rows.revision[order[1:]] != rows.revision[order[:-1]])
    )
    group = np.cumsum(new) - 1
    first = order[np.flatnonzero(new)][group]
    differs = np.zeros(group[-1] + 1, dtype=bool)
    differs[group[rows.value[order] != rows.value[first]]] = True
    wrong, again = order[differs[group]], order[~new & ~differs[group]]
    rows.action[wrong], rows.action[again] = REJECT, SKIP
    first_of = np.zeros(len(rows.action), np.int64)
    first_of[order] = first
    for row in np.sort(wrong).tolist():
        findings.add("contradiction in the file", row + 1, f"value {rows.value[row]:g}")
    for row in np.sort(again).tolist():
        findings.add("duplicate in the file", row + 1, f"as row {first_of[row] + 1}")


class _Recorded:
    """What the logs have of the decisions of a file.

    Args:
        file: The file.
        source: The logs.
        rows: The rows of the file.
        kinds: Codes of the kinds of the file.
        advance: Called with the progress of each log.
    """

    def __init__(
        self,
        file: OutcomeFile,
        source: DecisionSource,
        rows: _Rows,
        kinds: Mapping[str, int],
        advance: Advance | None,
    ) -> None:
        self._file, self._rows, self._kinds = file, rows, kinds
        self._ids = np.unique(rows.hashes[rows.action == SEND])
        decisions: list[npt.NDArray[np.int64]] = [np.empty((0, 3), np.int64)]
        reports: list[npt.NDArray[np.int64]] = [np.empty((0, 4), np.int64)]
        values: list[npt.NDArray[np.float64]] = [np.empty(0)]
        for place, log in enumerate(source.logs):
            withdrawn: list[int] = []
            begin = len(decisions), len(reports)
            for batch in log.read(SourceQuery(file.checkpoint), None, advance):
                if batch.kind == "decisions":
                    decisions.append(self._decisions(place, batch.rows))
                elif batch.kind == "outcomes":
                    found, value = self._reports(batch.rows)
                    reports.append(found)
                    values.append(value)
                elif batch.kind == "withdrawals":
                    withdrawn += batch.rows["withdrawn"].to_pylist()
            if withdrawn:
                for at in range(begin[0], len(decisions)):
                    decisions[at] = decisions[at][~np.isin(decisions[at][:, 2], withdrawn)]
                for at in range(begin[1], len(reports)):
                    stays = ~np.isin(reports[at][:, 3], withdrawn)
                    reports[at], values[at] = reports[at][stays], values[at][stays]
        self._known = np.concatenate(decisions)
        self._reported, self._values = np.concatenate(reports), np.concatenate(values)

    def apply(self, revise: bool, log: npt.NDArray[np.int16], findings: ImportFindings) -> None:
        """Compare the rows with the logs: set their actions, revisions and `log`, `[n]`."""
        rows = self._rows
        at = np.flatnonzero(rows.action == SEND)
        own = np.searchsorted(self._ids, rows.hashes[at])
        decided, place = self._decided()
        unknown = place[own] == _NOWHERE
        early = ~unknown & (rows.occurred[at] > 0) & (rows.occurred[at] < decided[own] - AHEAD_MS)
        log[at] = place[own]
        self._reject(at[unknown], "unknown decision", findings)
        self._reject(at[early], "before its decision", findings)
        stays = ~unknown & ~early
        self._compare(at[stays], own[stays], revise, findings)

    def _decided(self) -> tuple[Ints, npt.NDArray[np.int16]]:
        """Return the time of the first record of each id of the file, and its log; -1: there is none."""
        decided, place = np.zeros(len(self._ids), np.int64), np.full(len(self._ids), _NOWHERE, np.int16)
        known = self._known[:, 0]
        order = np.argsort(-self._known[:, 1], kind="stable")
        of = known[order] & ((1 << _BITS) - 1)
        # The earliest record is assigned last.
        decided[of] = self._known[order, 1]
        place[of] = known[order] >> _BITS
        return decided, place

    def _compare(self, at: Ints, own: Ints, revise: bool, findings: ImportFindings) -> None:
        """Compare rows with the reports of their outcomes.

        Args:
            at: Rows of known decisions, ``[m]``.
            own: Positions of their ids, ``[m]``.
            revise: Whether other values become the next revision.
            findings: Receives what is skipped, rejected or noted.
        """
        rows, width = self._rows, max(len(self._kinds), 1)
        keys, key = np.unique(own * width + rows.kind[at], return_inverse=True)
        theirs = self._reported[:, 0] * width + self._reported[:, 1]
        position = np.minimum(np.searchsorted(keys, theirs), max(len(keys) - 1, 0))
        same = keys[position] == theirs if len(keys) else np.zeros(len(theirs), bool)
        code = (position[same] << _BITS) | self._reported[same, 2]
        # The first report of a revision counts, as in the join.
        code, first = np.unique(code, return_index=True)
        value = self._values[same][first]
        newest = np.searchsorted(code, (np.arange(len(keys)) + 1) << _BITS) - 1
        there = newest >= 0
        if len(code):
            there &= (code[np.maximum(newest, 0)] >> _BITS) == np.arange(len(keys))
        for row, of in zip(at.tolist(), key.tolist(), strict=True):
            if not there[of]:
                continue
            last = int(code[newest[of]]) & ((1 << _BITS) - 1)
            wanted = int(rows.revision[row])
            if revise and not rows.given[row]:
                if value[newest[of]] == rows.value[row]:
                    self._skip(row, "already recorded", findings)
                else:
                    rows.revision[row] = last + 1
                    detail = f"{value[newest[of]]:g} becomes {rows.value[row]:g} as revision {last + 1}"
                    findings.add("corrects the log", row + 1, detail)
                continue
            exact = int(np.searchsorted(code, (of << _BITS) | wanted))
            if exact < len(code) and int(code[exact]) == (of << _BITS) | wanted:
                if value[exact] == rows.value[row]:
                    self._skip(row, "already recorded", findings)
                else:
                    rows.action[row] = REJECT
                    detail = (
                        f"revision {wanted} has {value[exact]:g} in the log, and {rows.value[row]:g} here"
                    )
                    findings.add("contradicts the log", row + 1, detail)
            elif wanted < last:
                findings.add("older than the log", row + 1, f"revision {wanted}, and {last} in the log")

    def _skip(self, row: int, name: str, findings: ImportFindings) -> None:
        self._rows.action[row] = SKIP
        findings.add(name, row + 1)

    def _reject(self, at: Ints, name: str, findings: ImportFindings) -> None:
        self._rows.action[at] = REJECT
        for row in at.tolist():
            findings.add(name, row + 1)

    def _decisions(self, place: int, rows: pa.Table) -> npt.NDArray[np.int64]:
        """Return position with log, time and sequence of the decisions that the file names, `[m, 3]`."""
        hashes = id_hashes(rows["decision_id"])
        at, own = self._positions(hashes)
        time_ms = rows["decided_at_us"].to_numpy()[at] // 1000
        return np.stack([(place << _BITS) | own, time_ms, rows["sequence"].to_numpy()[at]], axis=1)

    def _reports(self, rows: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return position, kind, revision and sequence of reports about the file's outcomes, and values."""
        at, own = self._positions(id_hashes(rows["decision_id"]))
        coded = rows["kind"].combine_chunks()
        names = coded.dictionary.to_pylist()
        codes = np.array([self._kinds.get(name, _NOWHERE) for name in names] or [_NOWHERE], np.int64)
        kind = codes[coded.indices.to_numpy()][at] if len(rows) else np.empty(0, np.int64)
        # Proven and unproven reports never conflict, and the file's are meant to be proven.
        stays = (kind != _NOWHERE) & (rows["proof"].to_numpy()[at] != UNPROVEN)
        at, own, kind = at[stays], own[stays], kind[stays]
        found = [own, kind, rows["revision"].to_numpy()[at], rows["sequence"].to_numpy()[at]]
        return np.stack(found, axis=1), rows["value"].to_numpy()[at]

    def _positions(self, hashes: Hashes) -> tuple[Ints, Ints]:
        """Return which hashes the file has, and their positions among its ids."""
        if not len(self._ids):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        place = np.minimum(np.searchsorted(self._ids, hashes), len(self._ids) - 1)
        at = np.flatnonzero(self._ids[place] == hashes)
        return at, place[at]
