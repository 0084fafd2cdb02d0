"""Sample-ratio check that may be evaluated at any time and any number of times.

Under the planned shares, the numbers of shoppers per lane are multinomial. The Bayes factor of a Dirichlet
alternative centred at the plan is a martingale with mean 1 under the plan. By Ville's inequality, the
probability that it ever exceeds 1/alpha is at most alpha: Lindon and Malek, "Anytime-valid inference for
multinomial count data" (NeurIPS 2022). This holds exactly at every sample size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_CONCENTRATION = 100.0
"""Concentration of the alternative. It corresponds to shares that differ from the plan by some percentage
points, which is typical of a faulty assignment."""


@dataclass(frozen=True, slots=True)
class RatioCheck:
    """Result of a sample-ratio check.

    Attributes:
        counts: Units (shoppers) per lane.
        evidence: Bayes factor against the plan, capped at 1e300.
        mismatch: Whether the Bayes factor is at least 1/alpha.
    """

    counts: tuple[int, ...]
    evidence: float
    mismatch: bool


def check_ratio(counts: Sequence[int], shares: Sequence[float], alpha: float) -> RatioCheck:
    """Compare counts with the planned shares; may be called at any time and repeatedly.

    Args:
        counts: Units (shoppers) per lane so far, each counted once.
        shares: Planned share per lane, adding up to 1, all above 0.
        alpha: Largest probability of ever reporting a mismatch if the plan holds.
    """
    total = sum(counts)
    prior = [_CONCENTRATION * share for share in shares]
    log_factor = math.lgamma(_CONCENTRATION) - math.lgamma(_CONCENTRATION + total)
    for count, share, weight in zip(counts, shares, prior, strict=True):
        log_factor += math.lgamma(weight + count) - math.lgamma(weight) - count * math.log(share)
    return RatioCheck(tuple(counts), math.exp(min(log_factor, 690.0)), bool(log_factor >= -math.log(alpha)))
