"""Which answer reached the caller: by the token that the outcome brought, and by marks of lost replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from scorer.learn.join.columns import FAULTS
from scorer.learn.join.outcomes import JoinedOutcomes
from scorer.stats.arrays import Bools, Floats, Ints

_REBUILT = [FAULTS.index(name) + 1 for name in ("no propensity", "propensity is not pmf[action]")]
_AGREE = 1e-9
_PREFIX = len("sha256:") + 16

_EXACT, _SAME, _UNNAMED, _OTHER = 0, 2, 4, 6
"""Ranks of a decision's records; a reply that was not delivered adds 1."""


@dataclass(frozen=True)
class NamedAnswers:
    """What the tokens say about the records of decisions, `[n]` each.

    Attributes:
        rank: the lower, the better the record of its id: named by the token, of the same answer, not named,
            of another answer.
        propensity: of the token; NaN without one.
        rebuilt: whether the record has no sound propensity and the token's agrees with the record's pmf.
    """

    rank: Ints
    propensity: Floats
    rebuilt: Bools

    @property
    def matches(self) -> Bools:
        """Whether a token names this answer."""
        return np.asarray(self.rank <= _SAME)

    @property
    def differs(self) -> Bools:
        """Whether the token of the decision names another answer."""
        return np.asarray(self.rank == _OTHER)


def named_answers(light: pa.Table, outcomes: JoinedOutcomes) -> NamedAnswers:
    """Compares each record with the token of its decision's outcome.

    A replica, or a server after a restart, decides a retry again: with the same bundle the answer is the
    same, and only its time differs.

    Args:
        light: the columns of all decisions.
        outcomes: those that count.
    """
    rows = len(light)
    rank = np.full(rows, _UNNAMED, dtype=np.int64)
    propensity, rebuilt = np.full(rows, np.nan), np.zeros(rows, dtype=bool)
    claims = outcomes.claims.combine_chunks()
    if not len(claims):
        return NamedAnswers(rank, propensity, rebuilt)
    ids = claims["decision_id"].combine_chunks()
    found = pc.index_in(light["decision_id"].combine_chunks(), value_set=ids).fill_null(-1).to_numpy()
    at = np.flatnonzero(found >= 0)
    of = found[at]
    token_bundle = np.array(pc.cast(claims["token_bundle"], pa.string()).to_pylist(), dtype=object)
    bundles = light["bundle"].combine_chunks()
    prefixes = np.array([text[:_PREFIX] for text in bundles.dictionary.to_pylist()], dtype=object)
    propensity[at] = claims["token_propensity"].to_numpy()[of]
    own, fault = light["propensity"].to_numpy()[at], light["fault"].to_numpy()[at]
    unsound = np.isin(fault, _REBUILT)
    agrees = np.abs(light["taken"].to_numpy()[at] - propensity[at]) <= _AGREE
    same = (
        (prefixes[bundles.indices.to_numpy()[at]] == token_bundle[of])
        & (light["action_index"].to_numpy()[at] == claims["token_index"].to_numpy()[of])
        & np.where(unsound, agrees, own == propensity[at])
    )
    exact = same & (
        light["decided_at_us"].to_numpy()[at] // 1000 == claims["token_decided_at_ms"].to_numpy()[of]
    )
    rank[at] = np.where(exact, _EXACT, np.where(same, _SAME, _OTHER))
    rebuilt[at] = same & unsound
    return NamedAnswers(rank, propensity, rebuilt)


def undelivered(light: pa.Table, deliveries: pa.Table) -> Bools:
    """`[n]` whether the reply of each record reached nobody.

    Args:
        light: the columns of all decisions.
        deliveries: the marks, in any order: a reply that was delivered to a retry was delivered.
    """
    gone = np.zeros(len(light), dtype=bool)
    marks = _marks(deliveries, False) - _marks(deliveries, True)
    if not marks:
        return gone
    ids = pa.array([name for name, _ in marks], light["decision_id"].type)
    rows = np.flatnonzero(_bools(pc.is_in(light["decision_id"], value_set=ids)))
    names, times = light["decision_id"].take(pa.array(rows)), light["decided_at_us"].take(pa.array(rows))
    pairs = zip(names.to_pylist(), times.to_pylist(), strict=True)
    gone[rows] = [pair in marks for pair in pairs]
    return gone


def _marks(deliveries: pa.Table, delivered: bool) -> set[tuple[str, int]]:
    rows = deliveries.filter(pc.equal(deliveries["delivered"], delivered))
    return set(zip(rows["decision_id"].to_pylist(), rows["decided_at_us"].to_pylist(), strict=True))


def _bools(values: Any) -> npt.NDArray[np.bool_]:
    return np.asarray(values.to_numpy(), dtype=bool)
