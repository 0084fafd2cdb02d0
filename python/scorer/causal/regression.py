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

import numpy as np

from scorer.causal.estimate import Pairs
from scorer.causal.matching import Block, variables
from scorer.causal.panel import Floats, Panel, Places

_MOST_ROWS = 100_000
_FEWEST = 20
_MOST_ODDS = 8.0


def reversion(panel: Panel, pairs: Pairs, controls: Places, seed: int) -> Floats:
    """Return how much of each adopter's monthly difference regression to the mean explains, `[n]`.

    Zero for blocks with too few adopters to estimate who adopts.

    Args:
        panel: The values.
        pairs: The matches.
        controls: Rows of all units that never adopted.
        seed: Of the sample of controls.
    """
    found = np.zeros(len(pairs.treated))
    noise = np.empty(len(pairs.control_unit))
    for at, one in enumerate(pairs.blocks):
        theirs = pairs.control_block == at
        noise[theirs] = noise_variance(panel, pairs.control_unit[theirs], one.begin, one.end)
    # The noise of similar units: an adopter's own would be high where its value is high by chance.
    around = pairs.average(noise)
    for at, slope in enumerate(_slopes(panel, pairs, controls, seed)):
        mine = pairs.block == at
        found[mine] = around[mine] * slope
    return found


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


def _slopes(panel: Panel, pairs: Pairs, controls: Places, seed: int) -> list[Floats]:
    """Return for each block the slope of the log-odds of adoption in the mean value, at its adopters."""
    from sklearn.linear_model import LogisticRegression

    generator = np.random.default_rng([seed, 17])
    sample = controls
    if len(sample) > _MOST_ROWS:
        sample = generator.choice(sample, _MOST_ROWS, replace=False)
    designs = [(_design(panel, one, one.treated), _design(panel, one, sample)) for one in pairs.blocks]
    sizes = np.array([len(one.treated) for one in pairs.blocks])
    if sizes.sum() < _FEWEST:
        return [np.zeros(size) for size in sizes]
    # The slopes are the same for all blocks, each with its own share of adopters.
    share = max(_MOST_ROWS // max(len(designs), 1), 1)
    rows, labels = [], []
    for at, (own, other) in enumerate(designs):
        kept = other[:share]
        codes = np.zeros((len(own) + len(kept), len(designs)))
        codes[:, at] = 1.0
        rows.append(np.concatenate([np.concatenate([own, kept]), codes], axis=1))
        labels.append(np.concatenate([np.ones(len(own)), np.zeros(len(kept))]))
    model = LogisticRegression(C=100.0, max_iter=200, fit_intercept=False)
    model.fit(np.concatenate(rows), np.concatenate(labels))
    first, second = model.coef_[0][:2]
    found = []
    for one, (own, _) in zip(pairs.blocks, designs, strict=True):
        value = variables(panel, one.treated, one.begin, one.end)[:, 0]
        slope = (first + 2.0 * second * own[:, 0]) * one.scales[0].slope(value)
        found.append(slope)
    return found


def _design(panel: Panel, block: Block, rows: Places) -> Floats:
    raw = variables(panel, rows, block.begin, block.end)
    scaled = np.stack([one.apply(raw[:, at]) for at, one in enumerate(block.scales)], axis=1)
    scaled = np.clip(scaled, -_MOST_ODDS, _MOST_ODDS)
    return np.concatenate([scaled[:, :1], scaled[:, :1] ** 2, scaled[:, 1:]], axis=1)
