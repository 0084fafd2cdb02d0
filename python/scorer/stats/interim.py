"""How interim analyses and parallel intervals share one false-alarm rate."""

from __future__ import annotations

from scorer.stats.distributions import beta_quantile


def interval_alpha(alpha: float, count: int, limit: int) -> float:
    """Return the false-alarm rate of one interval: more than `limit` of `count` fail with rate `alpha`.

    The intervals are independent, so the rate is the a with P(Binomial(count, a) > limit) = alpha: a quantile
    of a beta distribution.

    Args:
        alpha: False-alarm rate of all intervals together.
        count: Number of intervals.
        limit: Number of them that may fail, below `count`.
    """
    return beta_quantile(alpha, limit + 1, count - limit)


def alpha_share(analysis: int) -> float:
    """Return the share of the whole false-alarm rate that an interim analysis may spend.

    The shares are 1/2, 1/6, 1/12, ... and add up to 1 over any number of analyses, so results may be judged
    as often as new rows arrive.

    Args:
        analysis: Number of the analysis, from 1.
    """
    return 1 / (analysis * (analysis + 1))
