"""Which reported outcomes count: the one rule for training, gates, readouts and exports.

A server records with each outcome what proves that its reporter received the decision (`OutcomeProof` in
log.proto). A proven outcome takes precedence over an unproven one whatever their revisions, and by default an
unproven one does not count at all: anyone who can reach a server could have sent it.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Unproven: TypeAlias = Literal["exclude", "include"]
"""Whether an unproven outcome of a decision without a proven one counts."""

UNPROVEN_DESCRIPTION: Final = (
    'Outcomes that neither a decision token nor a decision known to the server proves: "exclude" them from '
    'training and gates, or "include" them where the decision has no proven outcome.'
)

UNSPECIFIED: Final = 0
"""Recorded by a version that did not demand proof: counts as proven."""
UNPROVEN: Final = 1
KNOWN: Final = 2
TOKEN: Final = 3

PROOFS: Final = ("not demanded", "unproven", "known decision", "decision token")
"""The values of `OutcomeProof` in words."""

_PRECEDENCE: Final = 1 << 32
"""Above every revision, which is a uint32."""


def is_proven(proof: int) -> bool:
    """Whether an outcome with this `OutcomeProof` is proven."""
    return proof != UNPROVEN


def may_count(proof: npt.NDArray[np.integer], unproven: Unproven) -> npt.NDArray[np.bool_]:
    """`[n]` whether each outcome may count at all."""
    return np.ones(len(proof), dtype=bool) if unproven == "include" else proof != UNPROVEN


def precedence(proof: npt.NDArray[np.integer], revision: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """`[n]` numbers of which the highest counts: proven before unproven, then by revision."""
    return np.where(proof != UNPROVEN, _PRECEDENCE, 0) + revision.astype(np.int64)


def precedence_of(proof: int, revision: int) -> int:
    """Return the number of one report, of which the highest counts, as `precedence` does."""
    return (_PRECEDENCE if is_proven(proof) else 0) + revision


def proof_in_words(proof: int) -> str:
    """What proves an outcome, as pages and commands show it."""
    return PROOFS[proof] if 0 <= proof < len(PROOFS) else PROOFS[UNPROVEN]
