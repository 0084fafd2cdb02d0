"""Checks of an estimate: placebos, trend and growth before adoption, balance, chains, and hidden bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import special

from scorer.causal.estimate import MatchedEffect, Pairs, block_covariates, mean_effect
from scorer.causal.matching import MatchedBlock, match, variables
from scorer.causal.panel import NEVER, Floats, Panel, Places
from scorer.causal.regression import Reversion, reversion
from scorer.causal.results import ChainedProduct, MonthDifference, PlaceboResult, VariableBalance
from scorer.causal.settings import CausalSettings
from scorer.stats.distributions import midranks, normal_quantile

_MOST_PRETENDED = 5_000
_MOST_CONTROLS = 300_000
_FEWEST = 5
_MOST_GAMMA = 50.0
_STEPS = 50


def in_time(panel: Panel, blocks: Sequence[MatchedBlock], settings: CausalSettings) -> PlaceboResult | None:
    """Pretend that adopters adopted earlier, and estimate the effect before they really did.

    Regression to the mean is taken off, because it is no effect. Whether adopters were selected by their
    value or by their level, nothing remains if adopters and controls developed alike.
    """
    shift = settings.placebo_months
    generator = np.random.default_rng([settings.seed, 3])
    share = min(1.0, _MOST_PRETENDED / max(sum(len(one.treated) for one in blocks), 1))
    earlier = []
    controls = _pool(panel.controls, generator)
    for one in blocks:
        treated = one.treated[generator.random(len(one.treated)) < share]
        end = one.month - shift
        begin = max(end - settings.pre_months, 0)
        if len(treated):
            earlier.append(match(panel, treated, controls, (begin, end), settings, month=end))
    pairs = _pairs(earlier, panel)
    if pairs is None:
        return None
    own, other = pairs.totals(panel, 0, shift)
    back = reversion(panel, pairs, panel.controls, settings.seed)
    return _tested_twice(panel, pairs, own, other, *block_covariates(panel, pairs), back=back, months=shift)


def in_space(
    panel: Panel, blocks: Sequence[MatchedBlock], settings: CausalSettings, horizon: int
) -> PlaceboResult | None:
    """Pretend that the nearest controls adopted, and estimate the effect on them."""
    generator = np.random.default_rng([settings.seed, 4])
    share = min(1.0, _MOST_PRETENDED / max(sum(len(one.treated) for one in blocks), 1))
    pretended = []
    used = np.zeros(panel.size, dtype=bool)
    for one in blocks:
        nearest = np.unique(one.neighbours[generator.random(len(one.treated)) < share, 0])
        # A unit pretends once, so that pretended adopters are different units.
        nearest = nearest[~used[nearest]]
        used[nearest] = True
        pretended.append((one, nearest))
    controls = panel.controls
    controls = _pool(controls[~used[controls]], generator)
    found = [
        match(panel, nearest, controls, (one.begin, one.end), settings, month=one.month)
        for one, nearest in pretended
        if len(nearest) and len(controls)
    ]
    pairs = _pairs(found, panel)
    if pairs is None:
        return None
    own, other = pairs.totals(panel, 0, horizon)
    effect = mean_effect(pairs, own, other, *block_covariates(panel, pairs), panel.size)
    return _tested(effect, 0.0, len(pairs.treated))


def trend(panel: Panel, pairs: Pairs, months: int) -> PlaceboResult:
    """Estimate by how much the difference changes per month before adoption.

    The outcome is the slope of a unit's monthly values, which does not depend on the level that units are
    matched on.
    """
    return _tested_twice(panel, pairs, *_slopes(panel, pairs, np.arange(months, dtype=np.float64)))


def growth(panel: Panel, pairs: Pairs, months: int, last: int, direction: float) -> PlaceboResult:
    """Test whether the difference grows in the last months before adoption, in the direction of the effect.

    A cause that is not in the data and begins shortly before adoption would look like an effect afterwards.
    The outcome is the slope of a line that is flat until the last months, which has more power against such a
    cause than the slope over all months. It is relative to the unit's value, and the test is one-sided.

    Args:
        panel: The values.
        pairs: The matches.
        months: Months of the period before adoption.
        last: Months in which the difference may grow.
        direction: Its sign is that of the effect.
    """
    bend = np.maximum(np.arange(last - months, last) + 1.0, 0.0)
    own, other, x_own, x_other = _slopes(panel, pairs, bend)
    mine, theirs = _relative(x_own, x_other)
    effect = _scaled(panel, pairs, (own, other, x_own, x_other), mine, theirs)
    # As a share of the value per month.
    unit = float(np.mean(np.abs(x_own[:, 0]) * mine)) or 1.0
    value, error = effect.value / unit, effect.error / unit
    p_value = float(special.ndtr(-np.sign(direction) * value / error)) if error > 0 else 1.0
    return PlaceboResult(value, error, p_value, len(own))


def _slopes(panel: Panel, pairs: Pairs, line: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the slopes along a line of the monthly values before adoption, and the regressors.

    Args:
        panel: The values.
        pairs: The matches.
        line: By month, up to the last one before adoption.

    Returns:
        Of adopters, of controls, and the regressors of both.
    """
    weights = (line - line.mean()) / ((line - line.mean()) ** 2).sum()
    own, other = np.zeros(len(pairs.treated)), np.zeros(len(pairs.control_unit))
    for month, weight in zip(range(-len(line), 0), weights, strict=True):
        mine, theirs = pairs.totals(panel, month, month + 1)
        own += weight * mine
        other += weight * theirs
    x_own, x_other = block_covariates(panel, pairs)
    # The last quarter is part of the slope.
    kept = [0, *range(2, x_own.shape[1])]
    return own, other, x_own[:, kept], x_other[:, kept]


def path(panel: Panel, pairs: Pairs, begin: int, end: int, confidence: float) -> tuple[MonthDifference, ...]:
    """Return mean values of adopters and synthetic controls by month from adoption on."""
    nothing_own, nothing_other = np.empty((len(pairs.treated), 0)), np.empty((len(pairs.control_unit), 0))
    critical = normal_quantile((1.0 + confidence) / 2)
    found = []
    for month in range(begin, end):
        own, other = pairs.totals(panel, month, month + 1)
        effect = mean_effect(pairs, own, other, nothing_own, nothing_other, panel.size)
        mean = float(own.mean())
        reach = critical * effect.error
        found.append(
            MonthDifference(
                month, mean, mean - effect.value, effect.value, effect.value - reach, effect.value + reach
            )
        )
    return tuple(found)


def balance(panel: Panel, pairs: Pairs) -> tuple[VariableBalance, ...]:
    """Return standardised differences of the matching variables before and after matching."""
    names = ["value", *panel.features]
    own, synthetic, all_controls, spread = [], [], [], []
    controls = panel.controls
    for at, one in enumerate(pairs.blocks):
        mine, theirs = pairs.block == at, pairs.control_block == at
        treated = variables(panel, pairs.treated[mine], one.begin, one.end)
        matched = variables(panel, pairs.control_unit[theirs], one.begin, one.end)
        never = variables(panel, controls, one.begin, one.end)
        weight = pairs.weight[theirs]
        own.append(treated.sum(axis=0))
        synthetic.append((matched * weight[:, None]).sum(axis=0))
        all_controls.append(never.mean(axis=0) * len(treated))
        variance = (treated.var(axis=0) + never.var(axis=0)) / 2
        spread.append(variance * len(treated))
    n = len(pairs.treated)
    a, s, c = (np.sum(one, axis=0) / n for one in (own, synthetic, all_controls))
    sd = np.sqrt(np.maximum(np.sum(spread, axis=0) / n, 1e-300))
    return tuple(
        VariableBalance(
            name,
            float(a[at]),
            float(c[at]),
            float(s[at]),
            float((a[at] - c[at]) / sd[at]),
            float((a[at] - s[at]) / sd[at]),
        )
        for at, name in enumerate(names)
    )


def chains(panel: Panel, pairs: Pairs, before: int, horizon: int) -> tuple[tuple[ChainedProduct, ...], float]:
    """Compare how many adopters and controls adopt other products, and return both with the share of any.

    The time is the period before adoption and the horizon. A product that is adopted in either changes the
    difference between both.

    Args:
        panel: The values.
        pairs: The matches.
        before: Months of the period before adoption.
        horizon: Months from adoption on.
    """
    n = len(pairs.treated)
    nothing_own, nothing_other = np.empty((n, 0)), np.empty((len(pairs.control_unit), 0))
    months = np.array([one.month for one in pairs.blocks])
    any_other = np.zeros(n, dtype=bool)

    def adopts(adopted: Places, units: Places, block: Places) -> Floats:
        when, begin = adopted[units], months[block]
        return np.asarray(
            (when != NEVER) & (when >= begin - before) & (when < begin + horizon), dtype=np.float64
        )

    found = []
    for name, adopted in panel.others.items():
        own = adopts(adopted, pairs.treated, pairs.block)
        other = adopts(adopted, pairs.control_unit, pairs.control_block)
        any_other |= own > 0
        effect = mean_effect(pairs, own, other, nothing_own, nothing_other, panel.size)
        mean = float(own.mean())
        z = effect.value / effect.error if effect.error > 0 else 0.0
        found.append(ChainedProduct(name, mean, mean - effect.value, z))
    return tuple(found), float(any_other.mean()) if n else 0.0


def gamma(pairs: Pairs, effect: MatchedEffect, level: float) -> float | None:
    """Return Rosenbaum's bound: the greatest odds ratio of hidden bias at which the effect is significant.

    The test is Wilcoxon's signed rank of the corrected difference of each adopter to its nearest control,
    one-sided in the direction of the effect. Controls that are used repeatedly are not accounted for.
    """
    _, first = np.unique(pairs.adopter, return_index=True)
    differences = effect.adjusted - effect.residual[pairs.control[first]]
    if effect.value < 0:
        differences = -differences
    differences = differences[differences != 0]
    n = len(differences)
    if n < _FEWEST:
        return None
    ranks = midranks(np.abs(differences))
    statistic, total = float(ranks[differences > 0].sum()), float(ranks.sum())
    squares = float((ranks**2).sum())

    def p_value(odds: float) -> float:
        share = odds / (1.0 + odds)
        spread = np.sqrt(share * (1.0 - share) * squares)
        return float(special.ndtr(-(statistic - share * total) / spread))

    if p_value(1.0) > level:
        return None
    low, high = 1.0, _MOST_GAMMA
    if p_value(high) <= level:
        return high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(middle) <= level else (low, middle)
    return low


def _pool(controls: Places, generator: np.random.Generator) -> Places:
    """Return the controls of a placebo, a sample if there are very many."""
    if len(controls) <= _MOST_CONTROLS:
        return controls
    return np.sort(generator.choice(controls, _MOST_CONTROLS, replace=False))


def _pairs(blocks: Sequence[MatchedBlock], panel: Panel) -> Pairs | None:
    kept = [one for one in blocks if len(one.treated)]
    if sum(len(one.treated) for one in kept) < _FEWEST:
        return None
    return Pairs.of(kept, panel.size)


def _tested_twice(
    panel: Panel,
    pairs: Pairs,
    own: Floats,
    other: Floats,
    x_own: Floats,
    x_other: Floats,
    *,
    back: Reversion | None = None,
    months: int = 0,
) -> PlaceboResult:
    """Test an effect as money, and relative to the unit's value; the p-value is for both tests together.

    A few large units can hide in money what all units have in common. The relative test divides the
    regressors, too, because an outcome that grows with the value is a curve in it after the division.

    Args:
        panel: The values.
        pairs: The matches.
        own: `[n]`, outcomes of adopters.
        other: `[m]`, outcomes of controls.
        x_own: `[n, p]`, regressors of adopters; the first is the value.
        x_other: `[m, p]`, regressors of controls.
        back: Regression to the mean, which is taken off.
        months: Months of the outcome.
    """

    def tested(mine: Floats, theirs: Floats) -> PlaceboResult:
        effect = _scaled(panel, pairs, (own, other, x_own, x_other), mine, theirs)
        expected, error = back.mean(mine * months) if back is not None else (0.0, 0.0)
        return _tested(effect, expected, len(own), error)

    money = tested(np.ones(len(own)), np.ones(len(other)))
    relative = tested(*_relative(x_own, x_other))
    return replace(money, p_value=min(1.0, 2.0 * min(money.p_value, relative.p_value)))


def _relative(x_own: Floats, x_other: Floats) -> tuple[Floats, Floats]:
    """Return factors that make outcomes of adopters and controls relative to their value."""
    unit = float(np.mean(np.abs(x_other[:, 0]))) or 1.0
    return 1.0 / (np.abs(x_own[:, 0]) + unit), 1.0 / (np.abs(x_other[:, 0]) + unit)


def _scaled(
    panel: Panel,
    pairs: Pairs,
    given: tuple[Floats, Floats, Floats, Floats],
    mine: Floats,
    theirs: Floats,
) -> MatchedEffect:
    """Estimate the effect on outcomes that are multiplied by factors, with their regressors."""
    own, other, x_own, x_other = given
    return mean_effect(
        pairs, own * mine, other * theirs, x_own * mine[:, None], x_other * theirs[:, None], panel.size
    )


def _tested(effect: MatchedEffect, expected: float, units: int, more: float = 0.0) -> PlaceboResult:
    value, error = effect.value - expected, float(np.hypot(effect.error, more))
    p_value = float(2.0 * special.ndtr(-abs(value) / error)) if error > 0 else 1.0
    return PlaceboResult(value, error, p_value, units)
