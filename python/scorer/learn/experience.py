"""What learning learns from: action decisions with what became of them, in columns.

Made by the join of a decision log, or by the simulator; training, evaluation,
the overlay, gates and reports read this and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scorer.learn.decisions import DecisionBlock
from scorer.learn.errors import DataError
from scorer.stats.arrays import Bools, Floats, Ints, Rows32

if TYPE_CHECKING:
    import pyarrow as pa

Texts = npt.NDArray[Any]
"""Of NumPy's text of variable width (`StringDType`), or of fixed width."""


_TEXTS = 65_536
_NAMES = {"bundles", "lanes", "actions", "withheld"}
"""Fields that are no columns."""


class State(IntEnum):
    """What is known about a decision's reward."""

    SETTLED = 0
    """The reward counts."""
    IN_FLIGHT = 1
    """Its action family's maturity window has not passed: never taken for a decline."""
    MISSING = 2
    """The window has passed and nothing was reported."""


@dataclass(frozen=True)
class Experience:
    """`n` decisions over a catalogue of `K` actions, in order of time.

    Attributes:
        decision_id: `[n]`.
        entity: `[n]` the shopper that lanes are drawn by; empty where the caller gave none.
        time_ms: `[n]` when it was decided, Unix time.
        settled_ms: `[n]` when its reward became known; -1 where it is not.
        context: `[n, context columns]` as the request carried them.
        eligible: `[n, K]`.
        pmf: `[n, K]` the whole of what the policy said.
        action: `[n]` position in the catalogue.
        propensity: `[n]` the probability of `action` when it was drawn.
        reward: `[n]` 0 or 1; NaN unless settled.
        state: `[n]` of `State`.
        bundle: `[n]` position in `bundles`.
        lane: `[n]` position in `lanes`.
        bundles: digests (or names of policies, for simulated rows).
        lanes: names.
        actions: the catalogue's ids, `K` of them.
        withheld: names of context columns that are missing in every row because they are sensitive.
        source: `[n]` `OutcomeSourceKind` of who or what reported the outcome that counts; 0 unless it is
            settled and the source was stated. Default: 0 for every decision.
    """

    decision_id: Texts
    entity: Texts
    time_ms: Ints
    settled_ms: Ints
    context: Rows32
    eligible: Bools
    pmf: Rows32
    action: Ints
    propensity: Floats
    reward: Floats
    state: npt.NDArray[np.int8]
    bundle: Ints
    lane: Ints
    bundles: tuple[str, ...]
    lanes: tuple[str, ...]
    actions: tuple[str, ...]
    withheld: tuple[str, ...] = ()
    source: npt.NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, dtype=np.int8))

    def __post_init__(self) -> None:
        if not len(self.source):
            object.__setattr__(self, "source", np.zeros(len(self.action), dtype=np.int8))

    def __len__(self) -> int:
        return len(self.action)

    def take(self, rows: slice | npt.NDArray[Any]) -> Experience:
        """Return the decisions at `rows`: a mask, indices or a slice."""
        columns = {
            column.name: getattr(self, column.name)[rows]
            for column in fields(self)
            if column.name not in _NAMES
        }
        return replace(self, **columns)

    def require_features(self, use: str) -> None:
        """Refuse a use that evaluates bundles: they may read features whose values are missing here.

        Raises:
            DataError: Sensitive features are withheld.
        """
        if self.withheld:
            names = ", ".join(self.withheld)
            raise DataError(
                f"{use}: the experience lacks sensitive features ({names}), which bundles over it may read; "
                "join with the reader key if they are encrypted, or serve bundles without them"
            )

    @property
    def context_columns(self) -> int:
        """Number of the context's columns."""
        return int(self.context.shape[1])

    @property
    def eligible_count(self) -> Ints:
        """`[n]` number of eligible actions."""
        return np.asarray(self.eligible.sum(axis=1), dtype=np.int64)

    @property
    def took_eligible(self) -> Bools:
        """`[n]` whether the action taken was eligible."""
        return self.eligible[np.arange(len(self)), self.action]

    def blocks(self, most: int) -> Iterator[DecisionBlock]:
        """Yield all decisions in order, at most `most` at a time, without copying them."""
        for start in range(0, len(self), most):
            rows = slice(start, start + most)
            yield DecisionBlock(
                self.context[rows],
                self.eligible[rows],
                self.action[rows],
                self.propensity[rows],
                self.reward[rows],
            )

    def names(self) -> Iterator[Texts]:
        """Yield the shopper of each decision, or the decision's id where there is none."""
        yield names(self.entity, self.decision_id)

    def contexts(self) -> Rows32:
        """Return all contexts, as reference data of a bundle."""
        return self.context

    def settled(self) -> Experience:
        """The decisions whose reward is known."""
        return self.take(self.state == State.SETTLED)

    def digest(self) -> str:
        """`sha256:<hex>` over every column and name."""
        hasher = hashlib.sha256()
        for column in fields(self):
            value = getattr(self, column.name)
            if column.name == "source" and not value.any():
                # Experience without sources has the digest that versions without them computed.
                continue
            if isinstance(value, tuple):
                hasher.update("\0".join(value).encode())
            elif value.dtype.kind in "TU":
                hasher.update("\0".join(value.tolist()).encode())
            else:
                hasher.update(np.ascontiguousarray(value).data)
        return f"sha256:{hasher.hexdigest()}"

    def between(self, start_ms: int, end_ms: int) -> Experience:
        """The decisions of `[start_ms, end_ms)`."""
        return self.take((self.time_ms >= start_ms) & (self.time_ms < end_ms))


def concatenate(parts: Sequence[Experience]) -> Experience:
    """One after the other; names of bundles and lanes are merged.

    Raises:
        ValueError: there is nothing to join, or catalogues differ.
    """
    if not parts:
        raise ValueError("no experience to join")
    if len({part.actions for part in parts}) > 1:
        raise ValueError("experience over different catalogues cannot be joined")
    bundles = tuple(dict.fromkeys(name for part in parts for name in part.bundles))
    lanes = tuple(dict.fromkeys(name for part in parts for name in part.lanes))
    columns: dict[str, Any] = {}
    for column in fields(Experience):
        if column.name not in _NAMES | {"bundle", "lane"}:
            columns[column.name] = np.concatenate([getattr(part, column.name) for part in parts])
    columns["bundle"] = np.concatenate([_renamed(part.bundle, part.bundles, bundles) for part in parts])
    columns["lane"] = np.concatenate([_renamed(part.lane, part.lanes, lanes) for part in parts])
    withheld = tuple(dict.fromkeys(name for part in parts for name in part.withheld))
    return Experience(**columns, bundles=bundles, lanes=lanes, actions=parts[0].actions, withheld=withheld)


def _renamed(codes: Ints, own: tuple[str, ...], merged: tuple[str, ...]) -> Ints:
    return np.array([merged.index(name) for name in own], dtype=np.int64)[codes]


def names(entity: Texts, decision_id: Texts) -> Texts:
    """`[n]` the shopper, or the decision's id where there is none."""
    return np.where(entity != "", entity, decision_id)


def texts(column: pa.ChunkedArray) -> Texts:
    """`[n]` of an Arrow column: 16 bytes and the text itself for each, however long the longest one is."""
    kind = np.dtypes.StringDType()
    pieces = [
        np.array(chunk[start : start + _TEXTS].to_pylist(), dtype=kind)
        for chunk in column.chunks
        for start in range(0, len(chunk), _TEXTS)
    ]
    return np.concatenate(pieces) if pieces else np.array([], dtype=kind)
