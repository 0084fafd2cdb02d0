"""Regression to the mean of adopters.

The value before adoption is a unit's lasting level plus noise. If adopters were selected by what they did
(the observed value), controls with the same observed value are comparable. If they were selected by their
lasting level, a control with the same observed value has on average a lower level and more luck, and falls
back afterwards: the difference to it is too large. By Tweedie's formula the difference of the levels, given
the same observed value S, is s²(S) times the slope of the log-odds of adoption in S, where s² is the variance
of the noise in S. Values before adoption cannot distinguish between the two. Both ends are therefore
estimated, and the effect lies between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scorer.causal.estimate import Pairs
from scorer.causal.matching import MatchedBlock, variables
from scorer.causal.panel import Floats, Panel, Places

_MOST_ROWS = 100_000
_FEWEST = 20
_MOST_ODDS = 8.0
_RIDGE = 100.0


@dataclass(frozen=True)
class Reversion:
    """Regression to the mean of adopters, per month.

    Attributes:
        noise: `[n]`, variance of the noise in the mean value of each adopter's neighbours.
        basis: `[n, 2]`, derivatives of the two terms of the log-odds of adoption in the value.
        coefficients: Of these terms.
        covariance: Of the coefficients.
    """

    noise: Floats
    basis: Floats
    coefficients: Floats
    covariance: Floats

    def mean(self, weight: Floats | float = 1.0) -> tuple[float, float]:
        """Return how much of the mean monthly difference it explains, and the standard error.

        Args:
            weight: `[n]`, of each adopter's difference.
        """
        noise = self.noise * weight
        gradient = (noise[:, None] * self.basis).mean(axis=0)
        each = noise * (self.basis @ self.coefficients)
        variance = gradient @ self.covariance @ gradient + each.var() / len(each)
        return float(each.mean()), float(np.sqrt(max(variance, 0.0)))


def reversion(panel: Panel, pairs: Pairs, controls: Places, seed: int) -> Reversion:
    """Estimate the regression to the mean of matched adopters.

    It is zero with too few adopters to estimate who adopts.

    Args:
        panel: The values.
        pairs: The matches.
        controls: Rows of all units that never adopted.
        seed: Of the sample of controls.
    """
    noise = np.empty(len(pairs.control_unit))
    for at, one in enumerate(pairs.blocks):
        theirs = pairs.control_block == at
        noise[theirs] = noise_variance(panel, pairs.control_unit[theirs], one.begin, one.end)
    # The noise of similar units: an adopter's own would be high where its value is high by chance.
    return Reversion(pairs.average(noise), *_slopes(panel, pairs, controls, seed))


def noise_variance(panel: Panel, units: Places, begin: int, end: int) -> Floats:
    """Return the variance of the noise in the mean value of units over a period, from its parts.

    The common course of all units is removed, in proportion to the level of each. Parts are as long as a
    quarter of the period, so that months may depend on each other.
    """
    values = panel.values[units, begin:end].astype(np.float64)
    mean = values.mean(axis=1, keepdims=True)
    overall = mean.mean()
    course = (
        values.mean(axis=0, keepdims=True) / overall if abs(overall) > 1e-12 else np.ones((1, end - begin))
    )
    rest = values - mean * course
    parts = min(4, (end - begin) // 2) if end - begin >= 4 else end - begin
    means = np.stack([part.mean(axis=1) for part in np.array_split(rest, parts, axis=1)], axis=1)
    return np.asarray(means.var(axis=1, ddof=1) / parts)


def _slopes(panel: Panel, pairs: Pairs, controls: Places, seed: int) -> tuple[Floats, Floats, Floats]:
    """Return what the slope of the log-odds of adoption in the mean value is made of.

    Returns:
        `[n, 2]` derivatives of the two terms of the value at each adopter, the coefficients of these terms,
        and their covariance; zeros with too few adopters.
    """
    from sklearn.linear_model import LogisticRegression

    if len(pairs.treated) < _FEWEST:
        return np.zeros((len(pairs.treated), 2)), np.zeros(2), np.zeros((2, 2))
    sample, blocks = controls, len(pairs.blocks)
    share = max(_MOST_ROWS // blocks, 1)
    if len(sample) > share:
        sample = np.random.default_rng([seed, 17]).choice(sample, share, replace=False)
    # The slopes are the same for all blocks, each with its own share of adopters.
    rows, labels, basis = [], [], np.empty((len(pairs.treated), 2))
    for at, one in enumerate(pairs.blocks):
        mine = pairs.block == at
        own, other = _design(panel, one, pairs.treated[mine]), _design(panel, one, sample)
        codes = np.zeros((len(own) + len(other), blocks))
        codes[:, at] = 1.0
        rows.append(np.concatenate([np.concatenate([own, other]), codes], axis=1))
        labels.append(np.concatenate([np.ones(len(own)), np.zeros(len(other))]))
        value = variables(panel, pairs.treated[mine], one.begin, one.end)[:, 0]
        steep = one.scales[0].slope(value)
        basis[mine] = np.stack([steep, 2.0 * own[:, 0] * steep], axis=1)
    design = np.concatenate(rows)
    model = LogisticRegression(C=_RIDGE, max_iter=200, fit_intercept=False)
    model.fit(design, np.concatenate(labels))
    chance = model.predict_proba(design)[:, 1]
    information = (design * (chance * (1.0 - chance))[:, None]).T @ design
    covariance = np.linalg.inv(information + np.eye(len(information)) / _RIDGE)
    return basis, np.asarray(model.coef_[0][:2]), np.asarray(covariance[:2, :2])


def _design(panel: Panel, block: MatchedBlock, rows: Places) -> Floats:
    raw = variables(panel, rows, block.begin, block.end)
    scaled = np.stack([one.apply(raw[:, at]) for at, one in enumerate(block.scales)], axis=1)
    scaled = np.clip(scaled, -_MOST_ODDS, _MOST_ODDS)
    return np.concatenate([scaled[:, :1], scaled[:, :1] ** 2, scaled[:, 1:]], axis=1)
