"""Sample-ratio check that may be read at any time.

Under the planned shares the shoppers of the lanes are multinomial. The Bayes factor of a Dirichlet
alternative around the plan against the plan is a martingale of mean 1, so (Ville) it ever exceeds
1/alpha with probability at most alpha: Lindon and Malek, "Anytime-valid inference for multinomial
count data" (NeurIPS 2022). Exact at every size, no approximation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_CONCENTRATION = 100.0
"""Of the alternative: it expects shares some points off, which is what broken assignment looks like."""


@dataclass(frozen=True, slots=True)
class RatioCheck:
    """Result of a sample-ratio check.

    Attributes:
        counts: Units (shoppers) per lane.
        evidence: Bayes factor against the plan, capped at 1e300.
        mismatch: Whether the factor is at least 1/alpha.
    """

    counts: tuple[int, ...]
    evidence: float
    mismatch: bool


def check_ratio(counts: Sequence[int], shares: Sequence[float], alpha: float) -> RatioCheck:
    """Compare counts with the planned shares; may be called at any time and repeatedly.

    Args:
        counts: Units (shoppers) per lane so far, each counted once.
        shares: Planned share per lane, adding up to 1, all above 0.
        alpha: Probability of ever finding a mismatch where there is none.
    """
    total = sum(counts)
    prior = [_CONCENTRATION * share for share in shares]
    log_factor = math.lgamma(_CONCENTRATION) - math.lgamma(_CONCENTRATION + total)
    for count, share, weight in zip(counts, shares, prior, strict=True):
        log_factor += math.lgamma(weight + count) - math.lgamma(weight) - count * math.log(share)
    return RatioCheck(tuple(counts), math.exp(min(log_factor, 690.0)), bool(log_factor >= -math.log(alpha)))
