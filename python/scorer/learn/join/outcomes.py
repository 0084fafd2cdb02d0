"""Which report of an outcome counts: the first writer of a revision, and of proven revisions the highest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from scorer.learn.join.columns import CLAIMS
from scorer.learn.join.findings import EXAMPLES, LATER, Findings, first_ids
from scorer.learn.join.source_columns import SourceColumns
from scorer.log import Conflict, Reported
from scorer.log.proof import TOKEN, Unproven, may_count, precedence
from scorer.stats.arrays import Bools, Floats, Ints

_MOST_SHOWN = 100 * EXAMPLES
"""Conflicts that are considered as examples: one decision may have many."""
_REPORTED = ("sequence", "revision", "value", "occurred_at_ms", "received_at_us", "proof")


@dataclass(frozen=True)
class JoinedOutcomes:
    """What counts at a moment, one row for each decision with a report.

    Attributes:
        decision_id: of the decisions.
        value: `[n]` of the reports.
        occurred_at_ms: `[n]` Unix time; 0: not known.
        known_ms: `[n]` when the report became known, Unix time.
        token: `[n]` whether a decision token proves it.
        source: `[n]` `OutcomeSourceKind` of who or what reported it.
        claims: what the tokens say, a row for each report with one: the `token_` columns of `OUTCOMES`.
    """

    decision_id: pa.Array
    value: Floats
    occurred_at_ms: Ints
    known_ms: Ints
    token: Bools
    source: npt.NDArray[np.int8]
    claims: pa.Table

    def rows_of(self, ids: npt.NDArray[Any]) -> Ints:
        """`[n]` the row of each decision; -1: nothing was reported."""
        found = pc.index_in(pa.array(ids.tolist(), pa.large_string()), value_set=self.decision_id)
        return np.asarray(found.fill_null(-1).to_numpy(), dtype=np.int64)


def resolve(
    columns: SourceColumns, checkpoint: str, until_ms: int, unproven: Unproven, findings: Findings
) -> JoinedOutcomes:
    """Finds the report that counts for each decision.

    Args:
        columns: of the checkpoint.
        checkpoint: its name.
        until_ms: reports from later are not seen; Unix time in milliseconds.
        unproven: whether an unproven report counts where there is no proven one.
        findings: receives duplicates, revisions and conflicts.
    """
    table = columns.outcomes()
    ids, revision = table["decision_id"].combine_chunks(), table["revision"].to_numpy()
    value, occurred = table["value"].to_numpy(), table["occurred_at_ms"].to_numpy()
    received = table["received_at_us"].to_numpy()
    # When it was received; where the log does not say, when it occurred.
    known = np.where(received != 0, received // 1000, occurred)
    later = known > until_ms
    findings.add(LATER, count=int(later.sum()))
    findings.add_ids("outcome that is no number", ids.filter(pa.array(~later & ~np.isfinite(value))))
    proof = table["proof"].to_numpy()
    seen = ~later & np.isfinite(value)
    findings.add_ids("unproven outcome", ids.filter(pa.array(seen & ~may_count(proof, unproven))))
    revision = precedence(proof, revision)
    rows = np.flatnonzero(seen & may_count(proof, unproven))
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
    conflicts = dict(zip(rows[differs].tolist(), first[differs].tolist(), strict=True))

    def reported(row: int) -> Reported:
        figures = {name: table[name][row].as_py() for name in _REPORTED}
        return Reported(**figures, log=columns.name_of(table["log"][row].as_py()))

    def conflict(row: int) -> str:
        decision = ids[row].as_py()
        return str(Conflict(checkpoint, decision, columns.outcome, reported(conflicts[row]), reported(row)))

    of_conflicts = ids.take(pa.array(list(conflicts), pa.int64()))
    shown = pc.is_in(of_conflicts, value_set=pa.array(first_ids(of_conflicts), ids.type)).to_pylist()
    examples = [row for row, yes in zip(conflicts, shown, strict=True) if yes][:_MOST_SHOWN]
    findings.add_rows("conflicting outcomes", len(conflicts), map(conflict, examples))
    token = proof[counts] == TOKEN
    return JoinedOutcomes(
        ids.take(pa.array(counts)),
        value[counts],
        occurred[counts],
        known[counts],
        token,
        table["source"].to_numpy()[counts],
        table.take(pa.array(counts[token])).select(["decision_id", *CLAIMS]),
    )
