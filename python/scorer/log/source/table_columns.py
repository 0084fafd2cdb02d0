"""Conversion of rows of shipped tables to the columns of `scorer.log.columns`, without an object per row."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from scorer.ids import decision_key
from scorer.log.columns import DecisionColumns, OutcomeColumns, Ragged
from scorer.log.proof import PROOFS, UNPROVEN
from scorer.log.source.table_entries import mask_of

DECISION_COLUMNS: Final = (
    "sequence",
    "decision_id",
    "decided_at",
    "bundle",
    "schema_fingerprint",
    "kind",
    "decision",
    "action",
    "fallback_source",
    "action_index",
    "propensity",
    "features",
    "pmf",
    "eligible",
    "requested",
    "entity",
)
OUTCOME_COLUMNS: Final = ("sequence", "decision_id", "kind", "value", "revision", "proof")


def decision_columns(rows: pa.Table, base: int) -> tuple[DecisionColumns, list[str], list[str]]:
    """Return rows of the table of decisions as columns, with the bundles and labels that they refer to.

    Args:
        rows: The columns `DECISION_COLUMNS`.
        base: Number that is added to all sequences.
    """
    bundle, bundles = _coded(rows["bundle"])
    told = pc.if_else(pc.equal(rows["kind"], "action"), rows["action"], rows["decision"])
    label, labels = _coded(told)
    ids = rows["decision_id"]
    eligible = [mask_of(one) for one in rows["eligible"].to_pylist()]
    # Without rules, or in rows that a version without the column wrote, these are the eligible actions.
    requested = [
        mask if own is None else mask_of(own)
        for own, mask in zip(rows["requested"].to_pylist(), eligible, strict=True)
    ]
    columns = DecisionColumns(
        sequence=_sequence(rows, base),
        key=_keys(ids),
        at=rows["decided_at"].cast(pa.int64()).to_numpy(),
        bundle=bundle,
        fingerprint=_fingerprints(rows["schema_fingerprint"]),
        label=label,
        fallback=rows["fallback_source"].is_valid().to_numpy(),
        action=rows["action_index"].fill_null(0).to_numpy().astype(np.uint32),
        propensity=rows["propensity"].fill_null(0.0).to_numpy(),
        features=_lists(rows["features"]),
        pmf=_lists(rows["pmf"]),
        eligible=_bytes(eligible),
        requested=_bytes(requested),
        id=_bytes([one.encode() for one in ids.to_pylist()]),
        entity=_bytes([(one or "").encode() for one in rows["entity"].to_pylist()]),
    )
    return columns, bundles, labels


def outcome_columns(rows: pa.Table, base: int) -> tuple[OutcomeColumns, list[str]]:
    """Return rows of the table of outcomes as columns, with the kinds that they refer to.

    Args:
        rows: The columns `OUTCOME_COLUMNS`.
        base: Number that is added to all sequences.
    """
    kind, kinds = _coded(rows["kind"])
    proof = pc.index_in(rows["proof"], value_set=pa.array(PROOFS, pa.string())).fill_null(UNPROVEN)
    columns = OutcomeColumns(
        sequence=_sequence(rows, base),
        key=_keys(rows["decision_id"]),
        kind=kind,
        value=rows["value"].to_numpy(),
        revision=rows["revision"].to_numpy().astype(np.uint32),
        proof=proof.to_numpy().astype(np.int32),
    )
    return columns, kinds


def _sequence(rows: pa.Table, base: int) -> npt.NDArray[np.uint64]:
    sequences: npt.NDArray[np.uint64] = (rows["sequence"].to_numpy() + base).astype(np.uint64)
    return sequences


def _keys(ids: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    return np.fromiter((decision_key(one) for one in ids.to_pylist()), np.uint64, len(ids))


def _coded(texts: pa.ChunkedArray) -> tuple[npt.NDArray[np.uint32], list[str]]:
    """Return codes and the texts that they refer to."""
    coded = texts.combine_chunks().fill_null("").dictionary_encode()
    return coded.indices.to_numpy().astype(np.uint32), coded.dictionary.to_pylist()


def _fingerprints(texts: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    codes, values = _coded(texts)
    return np.array([int(one, 16) for one in values], dtype=np.uint64)[codes]


def _lists(column: pa.ChunkedArray) -> Ragged:
    """Return lists of numbers, of which a missing one is empty."""
    lists = column.combine_chunks()
    counts: Any = pc.list_value_length(lists).fill_null(0).to_numpy()
    return Ragged(lists.flatten().to_numpy(zero_copy_only=False), counts.astype(np.int64))


def _bytes(parts: list[bytes]) -> Ragged:
    counts = np.fromiter(map(len, parts), np.int64, len(parts))
    return Ragged(np.frombuffer(b"".join(parts), np.uint8), counts)
