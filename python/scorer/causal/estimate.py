"""The effect on matched adopters, and intervals by unit.

The mean effect is the bias-corrected matching estimator of Abadie and Imbens (2011). With D the difference
between an adopter's outcome and its synthetic control's, both after subtracting a linear regression that is
fitted to the matched controls, the effect is the mean of D. For given matches it is a weighted sum of
outcomes, so each unit has a contribution: of an adopter, its own residual; of a control, minus its residual
times its weight over all adopters that it is matched to, in all months. Resampling units and matching again
is not valid for a fixed number of neighbours (Abadie and Imbens 2008). Resampling the contributions is (Otsu
and Rai 2017). The interval is the studentised bootstrap of the contributions, which follows skewed values
better than the normal approximation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scorer.causal.matching import MatchedBlock
from scorer.causal.panel import Floats, Panel, Places
from scorer.stats.distributions import normal_quantile

_MOST_GROUPS = 4_000
_DRAWS_AT_ONCE = 200


@dataclass(frozen=True)
class Pairs:
    """Adopters and neighbours of several blocks as flat arrays.

    Attributes:
        blocks: The blocks.
        treated: `[n]`, rows of adopters.
        block: `[n]`, positions of their blocks.
        counts: `[n]`, number of neighbours.
        adopter: `[p]`, position in `treated`, of each pair.
        control: `[p]`, position in `control_unit`, of each pair.
        control_unit: `[m]`, row of each control, once for each block that it is used in.
        control_block: `[m]`, position of the block.
        weight: `[m]`, sum of 1/k over the adopters that it is matched to.
    """

    blocks: Sequence[MatchedBlock]
    treated: Places
    block: Places
    counts: Places
    adopter: Places
    control: Places
    control_unit: Places
    control_block: Places
    weight: Floats

    @classmethod
    def of(cls, blocks: Sequence[MatchedBlock], size: int) -> Pairs:
        """Return the pairs of blocks of a panel with `size` units."""
        treated = np.concatenate([one.treated for one in blocks])
        block = np.repeat(np.arange(len(blocks)), [len(one.treated) for one in blocks])
        neighbours = np.concatenate([one.neighbours for one in blocks])
        adopter, place = np.nonzero(neighbours >= 0)
        counts = np.bincount(adopter, minlength=len(treated))
        keys = block[adopter] * size + neighbours[adopter, place]
        unique, control = np.unique(keys, return_inverse=True)
        weight: Floats = np.bincount(control, weights=1.0 / counts[adopter], minlength=len(unique)).astype(
            np.float64
        )
        return cls(
            blocks,
            treated,
            block,
            counts,
            adopter,
            control.reshape(-1),
            unique % size,
            unique // size,
            weight,
        )

    def average(self, of_controls: Floats) -> Floats:
        """Return the mean over each adopter's neighbours, `[n]`, of values of controls, `[m]`."""
        sums = np.bincount(self.adopter, weights=of_controls[self.control], minlength=len(self.treated))
        return sums / self.counts

    def totals(self, panel: Panel, begin: int, end: int) -> tuple[Floats, Floats]:
        """Return the value of adopters and controls over the months `begin` to `end` from adoption on."""
        own, other = np.empty(len(self.treated)), np.empty(len(self.control_unit))
        for at, one in enumerate(self.blocks):
            mine, theirs = self.block == at, self.control_block == at
            first, last = one.month + begin, one.month + end
            own[mine] = panel.total(self.treated[mine], first, last)
            other[theirs] = panel.total(self.control_unit[theirs], first, last)
        return own, other


@dataclass(frozen=True)
class MatchedEffect:
    """An estimated mean with what its interval is computed from.

    Attributes:
        value: The estimate.
        error: Standard error.
        contributions: Of the units to the error, without those of zero.
        corrected: `[n]`, difference of each adopter, corrected by the regression.
        residual: `[m]`, of controls.
        adjusted: `[n]`, of adopters: outcome minus regression.
        effective_controls: Number of controls of equal weight that give the same variance.
    """

    value: float
    error: float
    contributions: Floats
    corrected: Floats
    residual: Floats
    adjusted: Floats
    effective_controls: float


def covariates(panel: Panel, units: Places, begin: int, end: int) -> Floats:
    """Return the regressors of units, `[n, p]`: value, value of the last quarter of the period, features."""
    recent = max((end - begin) // 4, 1)
    columns = [
        panel.values[units, begin:end].mean(axis=1, dtype=np.float64),
        panel.values[units, end - recent : end].mean(axis=1, dtype=np.float64),
    ]
    columns += [one[units, begin:end].mean(axis=1, dtype=np.float64) for one in panel.features.values()]
    return np.stack(columns, axis=1)


def block_covariates(panel: Panel, pairs: Pairs) -> tuple[Floats, Floats]:
    """Return the regressors of adopters, `[n, p]`, and of controls, `[m, p]`, before adoption."""
    width = 2 + len(panel.features)
    own, other = np.empty((len(pairs.treated), width)), np.empty((len(pairs.control_unit), width))
    for at, one in enumerate(pairs.blocks):
        mine, theirs = pairs.block == at, pairs.control_block == at
        own[mine] = covariates(panel, pairs.treated[mine], one.begin, one.end)
        other[theirs] = covariates(panel, pairs.control_unit[theirs], one.begin, one.end)
    return own, other


def mean_effect(
    pairs: Pairs, own: Floats, other: Floats, x_own: Floats, x_other: Floats, size: int
) -> MatchedEffect:
    """Estimate the mean effect on adopters.

    Args:
        pairs: The matches.
        own: `[n]`, outcomes of adopters.
        other: `[m]`, outcomes of controls.
        x_own: `[n, p]`, regressors of adopters.
        x_other: `[m, p]`, regressors of controls.
        size: Number of units in the panel.
    """
    n, weight, blocks = len(own), pairs.weight, len(pairs.blocks)
    total = np.bincount(pairs.control_block, weights=weight, minlength=blocks)

    def centre(values: Floats) -> Floats:
        sums = np.bincount(pairs.control_block, weights=weight * values, minlength=blocks)
        return sums / np.maximum(total, 1e-300)

    x_mean = np.array([centre(column) for column in x_other.T]).reshape(-1, blocks).T
    y_mean = centre(other)
    x, y = x_other - x_mean[pairs.control_block], other - y_mean[pairs.control_block]
    gap, adjusted = x_own - x_mean[pairs.block], own - y_mean[pairs.block]
    spread = np.sqrt(np.average(x**2, axis=0, weights=weight)) if len(x) else np.zeros(x.shape[1])
    # A constant regressor has no slope, and few controls do not determine slopes.
    used = np.flatnonzero(spread > 1e-9 * (np.abs(x_mean).max(axis=0, initial=0) + 1e-9))
    if len(x) < 5 * (len(used) + blocks):
        used = used[:1] if len(x) >= 5 * (1 + blocks) else used[:0]
    leverage = weight / total[pairs.control_block]
    influence = np.full(len(x), 1.0 / n)
    if len(used):
        scaled, gap = x[:, used] / spread[used], gap[:, used] / spread[used]
        gram = (scaled * weight[:, None]).T @ scaled
        inverse = np.linalg.pinv(gram, rcond=1e-8, hermitian=True)
        slopes = inverse @ (scaled.T @ (weight * y))
        y, adjusted = y - scaled @ slopes, adjusted - gap @ slopes
        leverage = leverage + weight * np.einsum("ij,jk,ik->i", scaled, inverse, scaled)
        influence = influence + scaled @ (inverse @ gap.mean(axis=0))
    influence = influence * weight
    value = float(adjusted.mean())
    from_own = (adjusted - value) / np.sqrt(n * max(n - 1, 1))
    from_other = -influence * y / np.sqrt(np.clip(1.0 - leverage, 0.05, 1.0))
    sums = np.bincount(
        np.concatenate([pairs.treated, pairs.control_unit]),
        weights=np.concatenate([from_own, from_other]),
        minlength=size,
    )
    contributions = sums[sums != 0.0]
    return MatchedEffect(
        value=value,
        error=float(np.sqrt((contributions**2).sum())),
        contributions=contributions,
        corrected=adjusted - pairs.average(y),
        residual=y,
        adjusted=adjusted,
        effective_controls=float(influence.sum() ** 2 / max((influence**2).sum(), 1e-300)),
    )


def studentised(contributions: Floats, replications: int, seed: int) -> Floats:
    """Return draws of the studentised sum of contributions, sorted.

    Of many contributions, random groups are drawn: sums of independent contributions are independent
    contributions to the same sum.
    """
    generator = np.random.default_rng(seed)
    if len(contributions) > _MOST_GROUPS:
        group = generator.integers(0, _MOST_GROUPS, len(contributions))
        contributions = np.asarray(
            np.bincount(group, weights=contributions, minlength=_MOST_GROUPS), dtype=np.float64
        )
    values = contributions - contributions.mean() if len(contributions) else np.zeros(1)
    drawn = []
    for begin in range(0, replications, _DRAWS_AT_ONCE):
        count = min(_DRAWS_AT_ONCE, replications - begin)
        sample = values[generator.integers(0, len(values), (count, len(values)))]
        spread = np.sqrt(len(values) * sample.var(axis=1))
        drawn.append(sample.sum(axis=1) / np.maximum(spread, 1e-300))
    return np.sort(np.concatenate(drawn))


def interval(
    low_end: tuple[float, float], high_end: tuple[float, float], draws: Floats, confidence: float
) -> tuple[float, float]:
    """Return an interval of a parameter that lies between two ends (Imbens and Manski 2004; Stoye 2009).

    It covers each of the ends with the given confidence; with equal ends it is the usual interval.

    Args:
        low_end: The smaller end and its standard error.
        high_end: The greater end and its standard error.
        draws: Sorted studentised draws.
        confidence: Such as 0.95.
    """
    error = max(low_end[1], high_end[1])
    tail = _tail((high_end[0] - low_end[0]) / error if error > 0 else 0.0, confidence)
    below, above = np.quantile(draws, [tail, 1.0 - tail])
    return low_end[0] - float(above) * low_end[1], high_end[0] - float(below) * high_end[1]


def _tail(width: float, confidence: float) -> float:
    """Return the probability of each tail, between (1 - confidence) / 2 and 1 - confidence."""
    from scipy.special import ndtr

    narrow, wide = (1.0 - confidence) / 2, 1.0 - confidence
    for _ in range(60):
        middle = (narrow + wide) / 2
        critical = normal_quantile(1.0 - middle)
        if ndtr(critical + width) - ndtr(-critical) > confidence:
            narrow = middle
        else:
            wide = middle
    return narrow


def median_effect(pairs: Pairs, effect: MatchedEffect, confidence: float) -> tuple[float, float, float]:
    """Return the median over pairs of adopter and neighbour, with the bounds of its interval.

    Without an effect, adopter and neighbour are interchangeable, so the median of their difference is 0
    for skewed values too. The difference to an average of neighbours has not this property. The variance of
    the share of pairs below the median counts pairs with a common adopter, and with a common control; the
    bounds are quantiles of the differences (Woodruff 1952).
    """
    differences = effect.adjusted[pairs.adopter] - effect.residual[pairs.control]
    weights = 1.0 / (pairs.counts[pairs.adopter] * len(pairs.treated))
    order = np.argsort(differences, kind="stable")
    values, cumulative = differences[order], np.cumsum(weights[order])

    def quantile(share: float) -> float:
        at = int(np.searchsorted(cumulative, min(max(share, 0.0), 1.0) * cumulative[-1]))
        return float(values[min(at, len(values) - 1)])

    middle = quantile(0.5)
    score = weights * (np.sign(differences - middle) * -0.5)
    by_adopter = np.bincount(pairs.adopter, weights=score)
    by_control = np.bincount(pairs.control_unit[pairs.control], weights=score)
    variance = max((by_adopter**2).sum() + (by_control**2).sum() - (score**2).sum(), (by_adopter**2).sum())
    reach = normal_quantile((1.0 + confidence) / 2) * float(np.sqrt(variance))
    return middle, quantile(0.5 - reach), quantile(0.5 + reach)
