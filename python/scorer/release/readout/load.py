"""Reading the evidence of a change from parts into columns of bounded size."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scorer.log.proof import UNSPECIFIED, Unproven, may_count, precedence
from scorer.release.gates.evidence import Counter, Flip, Observed, empty
from scorer.release.readout import parts
from scorer.release.segments.split import Codes
from scorer.stats.arrays import Ints

MOST: Final = 1_000_000
"""Largest number of rows of a lane in memory. If there are more, every n-th decision by its hash is read."""

_CODED: Final = {
    "label": "label",
    "live_label": "label",
    "top": "label",
    "live_top": "label",
    "error": "error",
    "live_fallback": "live_fallback",
}
_COLUMNS: Final = [one.name for one in fields(Observed) if one.name not in ("names", "server", "segments")]
_EXAMPLES = 50


class CodeNames:
    """Words as codes, the same in every lane; 0 is none.

    Args:
        known: Words that have codes already, by column.
        segments: Features that rows are split by.
    """

    def __init__(
        self, known: Mapping[str, Sequence[str]] | None = None, *, segments: Sequence[str] = ()
    ) -> None:
        self.segments = tuple(segments)
        columns = ("label", "server", "error", "live_fallback", *map(parts.segment_column, self.segments))
        self._codes: dict[str, dict[str, int]] = {column: {"": 0} for column in columns}
        for column, words in (known or {}).items():
            self._codes[column] = {word: at for at, word in enumerate(words)}

    def code(self, column: str, word: str | None) -> int:
        """Return the code of one name in a column."""
        own = self._codes[column]
        return own.setdefault(word or "", len(own))

    def codes(self, column: str, values: Any) -> npt.NDArray[np.int64]:
        """Return the codes of a column of names, `[n]`."""
        encoded = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        if not pa.types.is_dictionary(encoded.type):
            encoded = encoded.dictionary_encode()
        table = np.array([self.code(column, word) for word in encoded.dictionary.to_pylist()] + [0])
        indices = encoded.indices.fill_null(len(table) - 1).to_numpy(zero_copy_only=False)
        return np.asarray(table[indices], dtype=np.int64)

    def words(self) -> dict[str, list[str]]:
        """Return the words by code, as columns hold them."""
        return {"segments": list(self.segments)} | {
            column: list(codes) for column, codes in self._codes.items()
        }


@dataclass(frozen=True)
class Where:
    """A selection of rows of a lane."""

    root: Path
    checkpoint: str
    lane: str
    begin: int | None = None
    end: int | None = None

    def parts(self) -> Iterator[tuple[str, parts.Part]]:
        """Yield pairs of a server and a Parquet part."""
        for server, folder in parts.folders(self.root, self.checkpoint, self.lane):
            for part in parts.parts(folder):
                yield server, part

    def count(self) -> int:
        """Return the number of rows, ignoring the window."""
        return sum(pq.read_metadata(part.path).num_rows for _, part in self.parts())

    def by_server(self) -> dict[str, int]:
        """Return the number of rows by server, ignoring the window."""
        found: dict[str, int] = {}
        for server, part in self.parts():
            found[server] = found.get(server, 0) + int(pq.read_metadata(part.path).num_rows)
        return found

    def filters(self) -> Any:
        """Return the time window as a filter of Parquet's reader."""
        own = []
        if self.begin is not None:
            own.append(("at", ">=", self.begin))
        if self.end is not None:
            own.append(("at", "<", self.end))
        return own or None


def observed(where: Where, names: CodeNames, *, thin: int = 1, control: bool = False) -> Observed:
    """Read the rows of a lane, in order of time, with each decision once.

    Args:
        where: The rows to read.
        names: Codes of names, to which new names are added.
        thin: Read only every n-th decision, by its key.
        control: For an A/A control, whether to read only rows of the bundle that answered.
    """
    columns = [*_COLUMNS, *map(parts.segment_column, names.segments), "bundle", "live_bundle", "live_lane"]
    found: list[dict[str, Any]] = []
    for server, part in where.parts():
        table = parts.read(part, columns, where.filters())
        own = _arrays(table, names)
        own["segments"] = segments(table, names)
        own["server"] = np.full(len(table), names.code("server", server), dtype=np.int64)
        if control:
            same = pc.equal(pc.cast(table["bundle"], pa.string()), pc.cast(table["live_bundle"], pa.string()))
        else:
            # Answers of this change's own canary are not answers of the previous bundle.
            same = pc.not_equal(pc.cast(table["live_lane"], pa.string()), "canary")
        mask = same.to_numpy(zero_copy_only=False).astype(bool) & (own["key"] % np.uint64(thin) == 0)
        found.append({name: values[mask] for name, values in own.items()})
    if not found:
        return empty()
    joined = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
    order = first_records(joined["key"], joined["at"])
    return Observed(**{name: values[order] for name, values in joined.items()}, names=names.words())


def first_records(key: npt.NDArray[np.uint64], at: Ints) -> Ints:
    """Return the positions of the first record of each decision, in order of time.

    A decision has several records if its caller sent the request to several servers.
    """
    order = np.lexsort((key, at))
    _, first = np.unique(key[order], return_index=True)
    return np.asarray(order[np.sort(first)], dtype=np.int64)


def segments(table: Any, names: CodeNames) -> Codes:
    """Return the segments of the rows of a table; 0 where a part was written without them."""
    found = np.zeros((len(table), len(names.segments)), np.int32)
    for at, column in enumerate(map(parts.segment_column, names.segments)):
        if column in table.column_names:
            found[:, at] = names.codes(column, table[column])
    return found


def renamed(rows: Observed, names: CodeNames) -> Observed:
    """With the names that other lanes have added meanwhile."""
    split = rows.segments
    if not len(rows):
        split = np.zeros((0, len(names.segments)), np.int32)
    return replace(rows, segments=split, names=names.words())


def live_bundle(where: Where) -> str:
    """Return the digest of the bundle that answered the last observed request; empty if it is not known."""
    last: tuple[int, str] = (-1, "")
    for _, part in where.parts():
        table = parts.read(part, ["at", "live_bundle", "live_lane"])
        kept = table.filter(pc.not_equal(pc.cast(table["live_lane"], pa.string()), "canary"))
        if len(kept):
            at = int(np.argmax(kept["at"].to_numpy()))
            last = max(last, (int(kept["at"][at].as_py()), kept["live_bundle"][at].as_py() or ""))
    return last[1]


def flips(where: Where, rows: Observed) -> list[Flip]:
    """Return decisions whose labels differ, with the largest differences of scores, and their features."""
    places = np.flatnonzero(rows.flipped)
    apart = np.abs(rows.score[places] - rows.live_score[places])
    places = places[np.lexsort((rows.key[places], -apart))][:_EXAMPLES]
    ids = _looked_up(where, rows.key[places], ["decision_id", "different"])
    labels = rows.labels()
    found = []
    for place in places:
        told = ids.get(int(rows.key[place]))
        if told is None:
            continue
        own, live = (rows.top, rows.live_top) if rows.top[place] else (rows.label, rows.live_label)
        found.append(
            Flip(
                decision=told["decision_id"],
                at=int(rows.at[place]),
                live_label=labels[int(live[place])],
                label=labels[int(own[place])],
                live_score=float(rows.live_score[place]),
                score=float(rows.score[place]),
                features=[(n, before, own) for n, before, own in json.loads(told["different"] or "[]")],
            )
        )
    return found


def sample(where: Where, rows: Observed, most: int) -> list[dict[str, Any]]:
    """Return a sample of rows with their features.

    The rows with the smallest keys are taken, so that further rows change only a few of the sample.
    """
    keys = rows.key[rows.scored]
    if len(keys) > most:
        keys = np.partition(keys, most - 1)[:most]
    columns = ["features", "eligible", "score", "label", "propensity"]
    return [row for row in _looked_up(where, keys, columns).values() if row["features"]]


def outcomes(
    root: Path,
    checkpoint: str,
    *,
    kind: str | None = None,
    keys: npt.NDArray[np.uint64] | None = None,
    unproven: Unproven = "exclude",
) -> dict[str, tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64]]]:
    """Return keys and values of outcomes, by kind.

    Of several reports, the proven one with the highest revision counts, and of equal revisions the first one
    that a server received.

    Args:
        root: Directory of the parts.
        checkpoint: Name of the checkpoint.
        kind: Return only this kind; None: all kinds.
        keys: Return only outcomes of these decisions, which bounds the memory; None: of all decisions.
        unproven: Whether an unproven outcome counts if there is no proven one.
    """
    table = _reports(root, checkpoint, kind, keys)
    if table is None:
        return {}
    proof = _proofs(table)
    table, proof = table.filter(pa.array(may := may_count(proof, unproven))), proof[may]
    encoded = table["kind"].combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    codes, kinds = encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()
    key, value = table["key"].to_numpy(), table["value"].to_numpy()
    rank = -precedence(proof, table["revision"].to_numpy())
    order = np.lexsort((table["sequence"].to_numpy(), _received(table), rank, key))
    found = {}
    for name in sorted(kinds):
        own = order[codes[order] == kinds.index(name)]
        if len(own):
            of, first = np.unique(key[own], return_index=True)
            found[name] = of, value[own][first]
    return found


def unproven_outcomes(root: Path, checkpoint: str, kind: str, keys: npt.NDArray[np.uint64]) -> int:
    """Return the number of unproven reports about these decisions."""
    table = _reports(root, checkpoint, kind, keys)
    return 0 if table is None else int((~may_count(_proofs(table), "exclude")).sum())


def counters(root: Path, checkpoint: str, lane: str) -> list[Counter]:
    """Return all readings of a lane's counters. An incomplete last line is skipped."""
    found = []
    for file in sorted(root.glob(f"*/counters/{checkpoint}/{lane}.jsonl")):
        for text in file.read_text().splitlines():
            try:
                found.append(Counter(server=file.parts[-4], lane=lane, **json.loads(text)))
            except (ValueError, TypeError):
                continue
    return sorted(found, key=lambda one: (one.at, one.server))


def _reports(root: Path, checkpoint: str, kind: str | None, keys: npt.NDArray[np.uint64] | None) -> Any:
    """Return the reported outcomes of a kind about some decisions; None if there are none."""
    asked = []
    if kind is not None:
        asked.append(pc.field("kind") == kind)
    if keys is not None:
        asked.append(pc.field("key").isin(pa.array(np.unique(keys))))
    filters = None if not asked else asked[0] if len(asked) == 1 else asked[0] & asked[1]
    tables = [
        table
        for _, part in Where(root, checkpoint, parts.OUTCOMES).parts()
        if len(table := parts.read(part, None, filters))
    ]
    if not tables:
        return None
    return pa.concat_tables(tables, promote_options="permissive").unify_dictionaries().combine_chunks()


def _proofs(table: Any) -> npt.NDArray[np.int8]:
    """Return the `OutcomeProof` of each report, `[n]`. Parts of earlier versions do not have the column."""
    if "proof" not in table.column_names:
        return np.zeros(len(table), dtype=np.int8)
    return np.asarray(pc.fill_null(table["proof"], UNSPECIFIED).to_numpy(), dtype=np.int8)


def _received(table: Any) -> npt.NDArray[np.int64]:
    """Return when each report was received, `[n]` microseconds; 0 in parts of earlier versions."""
    if "received_at" not in table.column_names:
        return np.zeros(len(table), dtype=np.int64)
    return np.asarray(pc.fill_null(table["received_at"], 0).to_numpy(), dtype=np.int64)


def _arrays(table: Any, names: CodeNames) -> dict[str, Any]:
    own: dict[str, Any] = {}
    for name in _COLUMNS:
        values = table[name]
        if name in _CODED:
            own[name] = names.codes(_CODED[name], values)
        elif name == "key":
            own[name] = values.to_numpy().astype(np.uint64)
        elif pa.types.is_integer(values.type):
            own[name] = values.to_numpy().astype(np.int64)
        else:
            own[name] = values.to_numpy(zero_copy_only=False).astype(np.float64)
    return own


def _looked_up(where: Where, keys: Any, columns: list[str]) -> dict[int, dict[str, Any]]:
    """Return columns of single rows, by key. Only one part is in memory at a time."""
    wanted = pa.array(np.asarray(keys, dtype=np.uint64))
    found: dict[int, dict[str, Any]] = {}
    if not len(wanted):
        return found
    for _, part in where.parts():
        table = parts.read(part, ["key", *columns], pc.field("key").isin(wanted))
        for row in table.to_pylist():
            found.setdefault(row["key"], row)
    return found
