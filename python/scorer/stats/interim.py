"""Division of one false-alarm rate between interim analyses and between parallel intervals."""

from __future__ import annotations

from scorer.stats.distributions import beta_quantile


def interval_alpha(alpha: float, count: int, limit: int) -> float:
    """Return the false-alarm rate of one of several intervals that together have the rate `alpha`.

    All intervals together raise a false alarm if more than `limit` of them fail. They are independent, so the
    result is the rate a with P(Binomial(count, a) > limit) = alpha, a quantile of a beta distribution.

    Args:
        alpha: False-alarm rate of all intervals together.
        count: Number of intervals.
        limit: Number of them that may fail, below `count`.
    """
    return beta_quantile(alpha, limit + 1, count - limit)


def alpha_share(analysis: int) -> float:
    """Return the share of the total false-alarm rate that one interim analysis may use.

    The shares 1/2, 1/6, 1/12, ... add up to at most 1 for any number of analyses, so a result can be analysed
    whenever new rows arrive.

    Args:
        analysis: Number of the analysis, from 1.
    """
    return 1 / (analysis * (analysis + 1))
