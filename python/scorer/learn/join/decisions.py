"""Which decisions of a checkpoint are used, and their columns per bundle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from scorer.errors import BundleError
from scorer.learn.experience import texts
from scorer.learn.join.catalogue import CatalogueLayout
from scorer.learn.join.columns import FAULTS
from scorer.learn.join.delivery import named_answers, undelivered
from scorer.learn.join.findings import LATER, Findings, first_ids
from scorer.learn.join.outcomes import JoinedOutcomes
from scorer.learn.join.source_columns import SourceColumns
from scorer.stats.arrays import Bools, Floats, Ints

if TYPE_CHECKING:
    from scorer.log import BundleShelf

Texts = npt.NDArray[Any]

USED, UNSEEN = 0, -1
"""States of a row: used; decided after the moment. Above 0: excluded for `_REASONS[state - 1]`."""
_REASONS = (
    "repeated decision",
    "repeated with another answer",
    "undelivered decision",
    "token of another answer",
    "before the window",
    "exploration stopped",
    "fallback answer",
    "no action",
    "unknown bundle",
    "unusable bundle",
    "columns do not fit",
    "pmf of another length",
    "action is not the catalogue's",
    *FAULTS,
)
_STATE = {name: at for at, name in enumerate(_REASONS, start=1)}


@dataclass(frozen=True)
class Block:
    """Sound decisions of one bundle, in its own layout; `[n]` or `[n, ..]` each."""

    layout: CatalogueLayout
    decision_id: Texts
    entity: Texts
    lane: Texts
    time_us: Ints
    context: npt.NDArray[np.float32]
    eligible: Bools
    pmf: npt.NDArray[np.float32]
    action: Ints
    propensity: Floats
    withheld: Bools

    def __len__(self) -> int:
        return len(self.action)

    def take(self, rows: npt.NDArray[Any], **other: Any) -> Block:
        """The decisions at `rows`, with other columns where they are given."""
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS if name not in other}
        return replace(self, **columns, **other)


_COLUMNS = tuple(name for name in Block.__dataclass_fields__ if name != "layout")


@dataclass(frozen=True)
class UsedDecisions:
    """The decisions of a checkpoint as known at a moment.

    Attributes:
        state: `[n]` whether each decision of the log is used.
        known: ids of all decisions until the moment, used or not.
        newest: layout of the bundle that made the newest used decision; None: none is used.
        layouts: of the bundles, by digest.
        propensity: `[n]` of each decision, rebuilt from its token where the record has none.
    """

    state: npt.NDArray[np.int8]
    known: pa.ChunkedArray
    newest: CatalogueLayout | None
    layouts: dict[str, CatalogueLayout]
    propensity: Floats

    def blocks(self, columns: SourceColumns) -> list[Block]:
        """The used decisions, per bundle, from the columns that this selection was made of."""
        blocks, start = [], 0
        for table in columns.decisions():
            rows = slice(start, start + len(table))
            start += len(table)
            at = table.column_names.index("propensity")
            rebuilt = table.set_column(at, "propensity", pa.array(self.propensity[rows]))
            part = rebuilt.filter(pa.array(self.state[rows] == USED))
            for digest in pc.unique(part["bundle"]).to_pylist():
                own = part.filter(pc.equal(part["bundle"], digest))
                blocks.append(_block(own, self.layouts[digest]))
        return blocks


def select(
    columns: SourceColumns,
    shelf: BundleShelf,
    outcomes: JoinedOutcomes,
    findings: Findings,
    until_us: int,
    since_us: int,
) -> UsedDecisions:
    """Chooses the decisions to learn from.

    Args:
        columns: of the checkpoint.
        shelf: the bundles that the log speaks of.
        outcomes: whose tokens name the answer that reached the caller.
        findings: receives what is left out, by name.
        until_us: decisions from later are not seen; microseconds since the Unix epoch.
        since_us: decisions from before are left out.
    """
    light = columns.light()
    time_us = light["decided_at_us"].to_numpy()
    named, gone = named_answers(light, outcomes), undelivered(light, columns.deliveries())
    state = _choose_records(light, time_us > until_us, named.rank + np.where(gone, 1, 0))
    known = light["decision_id"].filter(pa.array(state == USED))

    def exclude(name: str, rows: Bools) -> None:
        state[(state == USED) & rows] = _STATE[name]

    fallback = light["fallback_source"]
    # Who returns a token was given the reply, whatever the connection did afterwards.
    exclude("undelivered decision", gone & ~named.matches)
    exclude("token of another answer", named.differs)
    exclude("before the window", time_us < since_us)
    exclude("exploration stopped", _true(pc.equal(fallback, "greedy")))
    exclude("fallback answer", _true(pc.not_equal(fallback, "")))
    exclude(
        "no action",
        (light["action_count"].to_numpy() == 0) & _true(pc.equal(light["action"], "")),
    )
    layouts = _check_layouts(light, state, shelf)
    sound = np.where(named.rebuilt, 0, light["fault"].to_numpy())
    findings.add("propensity from the token", count=int((named.rebuilt & (state == USED)).sum()))
    state[state == USED] = np.where(sound > 0, sound + len(_REASONS) - len(FAULTS), USED)[state == USED]
    _note(light, state, findings)
    used = np.flatnonzero(state == USED)
    newest = None
    if len(used):
        latest = used[time_us[used] == time_us[used].max()]
        last = max(latest.tolist(), key=lambda row: str(light["decision_id"][row]))
        newest = layouts[light["bundle"][last].as_py()]
    propensity = np.where(named.rebuilt, named.propensity, light["propensity"].to_numpy())
    return UsedDecisions(state, known, newest, layouts, propensity)


def _choose_records(light: pa.Table, later: Bools, rank: Ints) -> npt.NDArray[np.int8]:
    """`[n]` UNSEEN after the moment, else whether it is the record of its id that counts.

    That is the one of the lowest rank, and of equal ones the first in order of time. Records of the same
    microsecond are in an order that does not depend on the logs that they are in.
    """
    codes = pc.dictionary_encode(light["decision_id"].combine_chunks()).indices.to_numpy()
    bundles = light["bundle"].combine_chunks()
    ties = (
        light["propensity"].to_numpy(),
        light["action_index"].to_numpy(),
        _ranks(light["fallback_source"].combine_chunks()),
        _ranks(bundles),
    )
    order = np.lexsort((*ties, light["decided_at_us"].to_numpy(), rank, codes))
    order = order[~later[order]]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = codes[order][1:] != codes[order][:-1]
    chosen = order[np.flatnonzero(begins)][np.cumsum(begins) - 1] if len(order) else order
    state = np.where(later, UNSEEN, USED).astype(np.int8)
    bundle = bundles.indices.to_numpy()
    index, propensity = light["action_index"].to_numpy(), light["propensity"].to_numpy()
    same = (
        (bundle[order] == bundle[chosen])
        & (index[order] == index[chosen])
        & (propensity[order] == propensity[chosen])
    )
    others = np.where(same, _STATE["repeated decision"], _STATE["repeated with another answer"])
    state[order[~begins]] = others[~begins]
    return state


def _ranks(coded: pa.DictionaryArray) -> Ints:
    """`[n]` the place of each text in alphabetical order."""
    names = np.array(coded.dictionary.to_pylist(), dtype=object)
    return np.asarray(np.argsort(np.argsort(names))[coded.indices.to_numpy()], dtype=np.int64)


def _check_layouts(
    light: pa.Table, state: npt.NDArray[np.int8], shelf: BundleShelf
) -> dict[str, CatalogueLayout]:
    """Excludes decisions that do not fit the schema or the catalogue of their bundle."""
    bundles, actions = (light[name].combine_chunks() for name in ("bundle", "action"))
    bundle, action = bundles.indices.to_numpy(), actions.indices.to_numpy()
    code_of = {name: code for code, name in enumerate(actions.dictionary.to_pylist())}
    features, width = light["feature_count"].to_numpy(), light["action_count"].to_numpy()
    fingerprint, position = light["schema_fingerprint"].to_numpy(), light["action_index"].to_numpy()
    layouts: dict[str, CatalogueLayout] = {}
    for code, digest in enumerate(bundles.dictionary.to_pylist()):
        rows = np.flatnonzero((bundle == code) & (state == USED))
        if not len(rows):
            continue
        layout = read_layout(digest, shelf)
        if layout is None:
            state[rows] = _STATE["unknown bundle" if digest not in shelf.digests else "unusable bundle"]
            continue
        layouts[digest] = layout
        expected = np.array([code_of.get(one.id, -1) for one in layout.actions])
        count = len(layout.actions)
        known = position[rows] < count
        same = expected[np.where(known, position[rows], 0)] == action[rows]
        faults = (
            (
                "columns do not fit",
                (features[rows] != len(layout.features)) | (fingerprint[rows] != layout.fingerprint),
            ),
            ("pmf of another length", width[rows] != count),
            ("action is not the catalogue's", ~(known & same)),
        )
        for name, broken in reversed(faults):
            state[rows[broken]] = _STATE[name]
    return layouts


def read_layout(digest: str, shelf: BundleShelf) -> CatalogueLayout | None:
    """Layout of an action bundle; None if it was not found or does not load.

    Args:
        digest: of the bundle.
        shelf: the bundles.
    """
    try:
        bundle = shelf.get(digest)
    except BundleError:
        return None
    if bundle is None or bundle.kind != "action":
        return None
    return CatalogueLayout(
        digest,
        tuple(shelf.schema(digest).features),
        tuple(shelf.catalogue(digest)),
        bundle.schema_fingerprint,
    )


def _first(light: pa.Table, rows: Ints) -> list[int]:
    """Rows of the decisions whose ids come first in alphabetical order, at most one for each."""
    ids = light["decision_id"].take(pa.array(rows))
    place = pc.index_in(pa.array(first_ids(ids), ids.type), value_set=ids.combine_chunks())
    return [int(rows[at]) for at in place.to_pylist()]


def _note(light: pa.Table, state: npt.NDArray[np.int8], findings: Findings) -> None:
    """Notes every excluded decision, with what its reason is about."""
    findings.add(LATER, count=int((state == UNSEEN).sum()))
    about = {"fallback answer": "fallback_source", "action is not the catalogue's": "action"}
    for name, code in _STATE.items():
        rows = np.flatnonzero(state == code)

        def example(row: int, name: str = name) -> str:
            text: str = light["decision_id"][row].as_py()
            if name in {"unknown bundle", "unusable bundle"}:
                return f"{text} ({light['bundle'][row].as_py()[:19]})"
            return f"{text} ({light[about[name]][row].as_py()})" if name in about else text

        shown = [] if name == "before the window" else _first(light, rows)
        findings.add_rows(name, len(rows), map(example, shown))


def _block(part: pa.Table, layout: CatalogueLayout) -> Block:
    def matrix(name: str, width: int) -> npt.NDArray[Any]:
        flat = part[name].combine_chunks().flatten()
        return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(part), width)

    width = len(layout.actions)
    return Block(
        layout=layout,
        decision_id=texts(part["decision_id"]),
        entity=texts(part["entity"]),
        lane=texts(part["lane"]),
        time_us=part["decided_at_us"].to_numpy(),
        context=matrix("features", len(layout.features)),
        eligible=matrix("eligible", width),
        pmf=matrix("pmf", width),
        action=part["action_index"].to_numpy(),
        propensity=part["propensity"].to_numpy(),
        withheld=_withheld(part["withheld"].to_pylist(), len(layout.features)),
    )


def _withheld(rows: list[list[int]], width: int) -> Bools:
    """`[n, width]` whether a feature's value is missing because it is sensitive."""
    found = np.zeros((len(rows), width), dtype=bool)
    for row, positions in enumerate(rows):
        found[row, [at for at in positions if at < width]] = True
    return found


def _true(values: pa.ChunkedArray) -> Bools:
    return np.asarray(values.to_numpy(), dtype=bool)
