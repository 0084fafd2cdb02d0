"""The rule which reported outcomes count, for training, gates, reports and exports.

A server records with each outcome what proves that its reporter received the decision (`OutcomeProof` in
log.proto). A proven outcome takes precedence over an unproven one whatever their revisions, and by default an
unproven one does not count at all, because every client that can reach a server could have sent it.
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
"""The outcome was recorded by a version that did not require proof. It counts as proven."""
UNPROVEN: Final = 1
KNOWN: Final = 2
TOKEN: Final = 3

PROOFS: Final = ("not demanded", "unproven", "known decision", "decision token")
"""Texts for the values of `OutcomeProof`."""

_PRECEDENCE: Final = 1 << 32
"""Greater than every revision, which is a uint32."""


def is_proven(proof: int) -> bool:
    """Return whether an outcome with this value of `OutcomeProof` is proven."""
    return proof != UNPROVEN


def may_count(proof: npt.NDArray[np.integer], unproven: Unproven) -> npt.NDArray[np.bool_]:
    """Return whether each outcome may count, ``[n]``.

    Args:
        proof: Values of `OutcomeProof`, ``[n]``.
        unproven: Whether unproven outcomes may count.
    """
    return np.ones(len(proof), dtype=bool) if unproven == "include" else proof != UNPROVEN


def precedence(proof: npt.NDArray[np.integer], revision: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return the precedence of each report, ``[n]``. Of several reports, the highest precedence counts.

    Proven reports precede unproven ones; among either, the higher revision precedes.

    Args:
        proof: Values of `OutcomeProof`, ``[n]``.
        revision: Revisions, ``[n]``.
    """
    return np.where(proof != UNPROVEN, _PRECEDENCE, 0) + revision.astype(np.int64)


def precedence_of(proof: int, revision: int) -> int:
    """Return the precedence of one report; see `precedence`."""
    return (_PRECEDENCE if is_proven(proof) else 0) + revision


def proof_in_words(proof: int) -> str:
    """Return the text for a value of `OutcomeProof`; "unproven" for values of newer versions."""
    return PROOFS[proof] if 0 <= proof < len(PROOFS) else PROOFS[UNPROVEN]
