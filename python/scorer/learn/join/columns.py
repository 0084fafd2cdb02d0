"""What a join keeps of each row of a source: one checkpoint's decisions and outcomes as Arrow columns.

The columns do not depend on the moment of a join, its window or the available bundles, so they can be stored
and extended as the log grows (`cache`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from scorer.log.source import rows as source_rows
from scorer.log.source.interface import SourceBatch
from scorer.stats.arrays import Bools, Ints

_STORED: Final = [
    field.with_type(pa.list_(pa.float32())) if field.name == "pmf" else field
    for field in source_rows.DECISIONS
    if field.name not in ("decision", "rules")
]
_HEAVY: Final = ("entity", "lane", "features", "eligible", "pmf", "withheld")

DECISIONS: Final = pa.schema(
    [
        *(field for field in _STORED if field.name not in _HEAVY),
        ("feature_count", pa.int32()),
        ("action_count", pa.int32()),
        ("fault", pa.int8()),
        ("taken", pa.float64()),
        *(field for field in _STORED if field.name in _HEAVY),
    ]
)
"""The columns of the source with these: `feature_count` and `action_count` are the lengths of `features` and
`pmf`; `fault` is the position in `FAULTS` plus 1, 0 for none; `taken` is the pmf's probability of the
action."""

LIGHT: Final = tuple(name for name in DECISIONS.names if name not in _HEAVY)
"""Columns that determine whether a decision is used."""

OUTCOMES: Final = pa.schema([field for field in source_rows.OUTCOMES if field.name != "kind"])
"""Outcomes of the reward's kind."""

CLAIMS: Final = ("token_decided_at_ms", "token_bundle", "token_index", "token_propensity")
"""Columns of an outcome that only a token fills."""

NOTES: Final = pa.schema(
    [("sequence", pa.int64()), ("name", source_rows.CODED), ("example", pa.large_string())]
)
"""Findings about records that are neither a decision nor an outcome of the reward's kind."""

SCHEMAS: Final = {
    "decisions": DECISIONS,
    "outcomes": OUTCOMES,
    "deliveries": source_rows.DELIVERIES,
    "notes": NOTES,
}
"""Schemas of the tables that a join keeps, by their kind."""

FAULTS: Final = (
    "pmf with impossible values",
    "pmf does not sum to 1",
    "mass outside the eligible set",
    "no propensity",
    "propensity is not pmf[action]",
)

UNKNOWN_RECORD: Final = "unknown record"
"""Name of the finding about records of a newer version."""

_SUM = 1e-6
_AGREE = 1e-9


def kept_tables(batch: SourceBatch, outcome: str) -> dict[str, pa.Table]:
    """Return the tables that a join keeps of a batch, by their kind.

    Args:
        batch: Rows of the source, of any kind but withdrawals.
        outcome: Kind of the outcome that is the reward.
    """
    rows = batch.rows
    if batch.kind == "decisions":
        return {"decisions": _decisions(rows)}
    if batch.kind == "outcomes":
        of_reward = pc.equal(rows["kind"], outcome)
        others = rows.filter(pc.invert(of_reward))
        return {
            "outcomes": rows.filter(of_reward).select(OUTCOMES.names),
            "notes": notes_of(
                others["sequence"].to_pylist(), "outcome of another kind", others["kind"].to_pylist()
            ),
        }
    if batch.kind == "unknown":
        sequences = rows["sequence"].to_pylist()
        return {"notes": notes_of(sequences, UNKNOWN_RECORD, [f"sequence {one}" for one in sequences])}
    return {batch.kind: rows}


def notes_of(sequence: Sequence[int], name: str, examples: Sequence[str]) -> pa.Table:
    """Return a table of notes of one name, of records with these sequences and examples."""
    columns = {"sequence": sequence, "name": [name] * len(sequence), "example": examples}
    return source_rows.table(columns, NOTES)


def name_actions(rows: pa.Table) -> Bools:
    """Return which decisions, ``[n]``, are of an action rather than a score.

    Args:
        rows: Decisions with the columns `action` and `action_count`.
    """
    named = pc.or_(pc.greater(rows["action_count"], 0), pc.not_equal(rows["action"], ""))
    return np.asarray(named.to_numpy(), dtype=bool)


def _decisions(rows: pa.Table) -> pa.Table:
    pmf, eligible = rows["pmf"].combine_chunks(), rows["eligible"].combine_chunks()
    counts = _integers(pc.list_value_length(pmf))
    action, propensity = _integers(rows["action_index"]), rows["propensity"].to_numpy()
    fault, taken = np.zeros(len(rows), dtype=np.int8), np.full(len(rows), np.nan)
    for width in np.unique(counts[counts > 0]):
        at = np.flatnonzero(counts == width)
        probability, allowed = _matrix(pmf, at, width), _matrix(eligible, at, width)
        own = probability[np.arange(len(at)), np.minimum(action[at], width - 1)]
        taken[at] = np.where(action[at] < width, own, np.nan)
        fault[at] = _faults(probability, allowed, propensity[at], own)
    derived = {
        "feature_count": pc.list_value_length(rows["features"]),
        "action_count": pa.array(counts, pa.int32()),
        "fault": pa.array(fault),
        "taken": pa.array(taken),
        "pmf": pmf.cast(pa.list_(pa.float32())),
    }
    columns = [derived.get(name) if name in derived else rows[name] for name in DECISIONS.names]
    return pa.table(columns, schema=DECISIONS)


def _faults(
    pmf: npt.NDArray[Any], eligible: npt.NDArray[Any], p: npt.NDArray[Any], taken: npt.NDArray[Any]
) -> npt.NDArray[np.int8]:
    """Return the first rule of `FAULTS` that probabilities break, ``[n]``, from 1; 0 if they break none."""
    with np.errstate(invalid="ignore"):
        rules = (
            ~((pmf >= 0) & (pmf <= 1 + _SUM)).all(axis=1),
            ~(np.abs(pmf.sum(axis=1) - 1) <= _SUM),
            (np.where(eligible, 0, pmf) != 0).any(axis=1),
            ~((p > 0) & (p <= 1 + _SUM)),
            ~(np.abs(p - taken) <= _AGREE),
        )
    return np.where(np.any(rules, axis=0), np.argmax(rules, axis=0) + 1, 0).astype(np.int8)


def _matrix(lists: pa.ListArray, at: Ints, width: int) -> npt.NDArray[Any]:
    flat = lists.take(pa.array(at)).flatten()
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(at), int(width))


def _integers(values: Any) -> Ints:
    """Return integers of an Arrow array, of one or several chunks, as int64 ``[n]``."""
    return np.asarray(values, dtype=np.int64)
