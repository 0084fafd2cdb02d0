"""Which report of an outcome counts: the first writer of a revision, and of the revisions the highest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from scorer.learn.join.cache import LogColumns
from scorer.learn.join.findings import LATER, Findings
from scorer.log import Conflict, Reported
from scorer.stats.arrays import Floats, Ints


@dataclass(frozen=True)
class JoinedOutcomes:
    """What counts at a moment, one row for each decision with a report.

    Attributes:
        decision_id: of the decisions.
        value: `[n]` of the reports.
        occurred_at_ms: `[n]` Unix time; 0: not known.
        known_ms: `[n]` when the report became known, Unix time.
    """

    decision_id: pa.Array
    value: Floats
    occurred_at_ms: Ints
    known_ms: Ints

    def rows_of(self, ids: npt.NDArray[Any]) -> Ints:
        """`[n]` the row of each decision; -1: nothing was reported."""
        found = pc.index_in(pa.array(ids.tolist(), pa.large_string()), value_set=self.decision_id)
        return np.asarray(found.fill_null(-1).to_numpy(), dtype=np.int64)


def resolve(columns: LogColumns, checkpoint: str, until_ms: int, findings: Findings) -> JoinedOutcomes:
    """Finds the report that counts for each decision.

    Args:
        columns: of the checkpoint.
        checkpoint: its name.
        until_ms: reports from later are not seen; Unix time in milliseconds.
        findings: receives duplicates, revisions and conflicts.
    """
    table = columns.table("outcomes")
    ids, revision = table["decision_id"].combine_chunks(), table["revision"].to_numpy()
    value, occurred = table["value"].to_numpy(), table["occurred_at_ms"].to_numpy()
    received = table["received_at_us"].to_numpy()
    # When it was received; where the log does not say, when it occurred.
    known = np.where(received != 0, received // 1000, occurred)
    later = known > until_ms
    findings.add(LATER, count=int(later.sum()))
    broken = np.flatnonzero(~later & ~np.isfinite(value))
    findings.add_rows("outcome that is no number", len(broken), (ids[int(row)].as_py() for row in broken))
    rows = np.flatnonzero(~later & np.isfinite(value))
    coded = pc.dictionary_encode(ids.take(pa.array(rows)))
    code = coded.indices.to_numpy()
    order = np.lexsort((rows, revision[rows], code))
    rows, code = rows[order], code[order]
    # Reports of one decision and revision stand together, the first one first.
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (code[1:] != code[:-1]) | (revision[rows[1:]] != revision[rows[:-1]])
    first = rows[np.flatnonzero(new)][np.cumsum(new) - 1] if len(rows) else rows
    differs = ~new & (value[rows] != value[first])
    last = np.ones(len(rows), dtype=bool)
    last[:-1] = code[1:] != code[:-1]
    counts = first[last]
    findings.add("duplicate outcome", count=int((~new & ~differs).sum()))
    findings.add("revised outcome", count=int(new.sum()) - len(counts))
    conflicts = sorted(zip(rows[differs].tolist(), first[differs].tolist(), strict=True))

    def reported(row: int) -> Reported:
        sequence, _, *figures = (table[name][row].as_py() for name in table.column_names)
        return Reported(sequence, *figures)

    findings.add_rows(
        "conflicting outcomes",
        len(conflicts),
        (
            str(Conflict(checkpoint, ids[row].as_py(), columns.outcome, reported(at), reported(row)))
            for row, at in conflicts
        ),
    )
    return JoinedOutcomes(ids.take(pa.array(counts)), value[counts], occurred[counts], known[counts])
