"""Nearest neighbours before adoption: for each adopter, up to k units that never adopted and were alike.

Units are compared on their mean value before adoption and on the means of the features, each on the scale
asinh(x / s), with s the mean absolute value, and standardised. The scale is linear below s and logarithmic
above it, so that a few very large units do not determine the unit of distance. The distance is the root of
the weighted mean of squared differences, in standard deviations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from scorer.causal.panel import Floats, Panel, Places
from scorer.causal.settings import CausalSettings

_JITTER = 1e-7
_BATCH = 50_000
_FEW = 2_000
"""Adopters up to which a search in one thread is faster than starting several."""


@dataclass(frozen=True)
class Scale:
    """The scale of one matching variable: asinh(x / unit), standardised.

    Attributes:
        unit: In the unit of the variable.
        centre: Mean on the scale.
        spread: Standard deviation on the scale.
    """

    unit: float
    centre: float
    spread: float

    @classmethod
    def of(cls, values: Floats) -> Scale:
        """Return the scale of values."""
        unit = float(np.mean(np.abs(values))) or 1.0
        scaled = np.arcsinh(values / unit)
        spread = float(scaled.std())
        return cls(unit, float(scaled.mean()), spread if spread > 1e-9 else 1.0)

    def apply(self, values: Floats) -> Floats:
        """Return values on the scale."""
        return (np.arcsinh(values / self.unit) - self.centre) / self.spread

    def slope(self, values: Floats) -> Floats:
        """Return the derivative of the scale at values."""
        return 1.0 / (self.unit * self.spread * np.sqrt(1.0 + (values / self.unit) ** 2))


@dataclass(frozen=True)
class MatchedBlock:
    """The adopters of one month with their neighbours.

    Attributes:
        month: Position of the month of adoption.
        begin: First month of the matching period; it ends before `end`.
        end: The month after the matching period.
        treated: `[n]`, rows of the adopters with at least one neighbour within the threshold.
        neighbours: `[n, k]`, rows of their neighbours, nearest first; -1 where there are fewer.
        alone: Rows of the adopters without a neighbour.
        pool: Number of units that could be neighbours.
        scales: Of the matching variables; the first is the value.
    """

    month: int
    begin: int
    end: int
    treated: Places
    neighbours: Places
    alone: Places
    pool: int
    scales: Sequence[Scale]


def variables(panel: Panel, rows: Places, begin: int, end: int) -> Floats:
    """Return the matching variables of units, `[n, 1 + features]`: means of the months `begin` to `end`."""
    columns = [panel.values, *panel.features.values()]
    return np.stack([one[rows, begin:end].mean(axis=1, dtype=np.float64) for one in columns], axis=1)


def match(
    panel: Panel,
    treated: Places,
    controls: Places,
    window: tuple[int, int],
    settings: CausalSettings,
    *,
    month: int,
    advance: Callable[[float], None] = lambda _share: None,
) -> MatchedBlock:
    """Find the neighbours of adopters.

    Args:
        panel: The values.
        treated: `[n]`, rows of the adopters.
        controls: Rows of the units that can be neighbours. A unit is never its own neighbour.
        window: First month of the matching period, and the month after it.
        settings: Number of neighbours, threshold and weights.
        month: Position of the month of adoption.
        advance: Receives the share that is done.
    """
    own = variables(panel, treated, *window)
    other = variables(panel, controls, *window)
    scales = [Scale.of(np.concatenate([own[:, at], other[:, at]])) for at in range(own.shape[1])]
    weights = np.ones(own.shape[1])
    weights[0] = settings.value_weight
    weights /= weights.sum()
    factors = np.sqrt(weights)
    own = np.stack([one.apply(own[:, at]) * factors[at] for at, one in enumerate(scales)], axis=1)
    other = np.stack([one.apply(other[:, at]) * factors[at] for at, one in enumerate(scales)], axis=1)
    found = np.full((len(treated), settings.neighbours), -1, dtype=np.int64)
    # Equal units, such as those without any value, would make the search visit all of them.
    noise = np.random.default_rng([settings.seed, month])
    other += noise.normal(0.0, _JITTER, other.shape)
    if panel.groups is None:
        places = [(np.arange(len(treated)), np.arange(len(controls)))]
    else:
        group_t, group_c = panel.groups[treated], panel.groups[controls]
        places = [
            (np.flatnonzero(group_t == code), np.flatnonzero(group_c == code)) for code in np.unique(group_t)
        ]
    done = 0
    for rows, pool in places:
        if len(rows) and len(pool):
            _search(own, other, rows, pool, treated, controls, found, settings)
        done += len(rows)
        advance(done / max(len(treated), 1))
    matched = found[:, 0] >= 0
    return MatchedBlock(
        month=month,
        begin=window[0],
        end=window[1],
        treated=treated[matched],
        neighbours=found[matched],
        alone=treated[~matched],
        pool=len(controls),
        scales=tuple(scales),
    )


def _search(
    own: Floats,
    other: Floats,
    rows: Places,
    pool: Places,
    treated: Places,
    controls: Places,
    found: Places,
    settings: CausalSettings,
) -> None:
    from sklearn.neighbors import NearestNeighbors

    # One more, because a pretended adopter is itself in the pool.
    count = min(settings.neighbours + 1, len(pool))
    threads = -1 if len(rows) > _FEW else 1
    tree = NearestNeighbors(n_neighbors=count, algorithm="kd_tree", n_jobs=threads).fit(other[pool])
    for begin in range(0, len(rows), _BATCH):
        part = rows[begin : begin + _BATCH]
        distances, places = tree.kneighbors(own[part])
        names = controls[pool[places]]
        fits = (distances <= settings.threshold) & (names != treated[part][:, None])
        # The kept ones move to the front; they are ordered by distance already.
        order = np.argsort(~fits, axis=1, kind="stable")[:, : settings.neighbours]
        kept = np.where(np.take_along_axis(fits, order, 1), np.take_along_axis(names, order, 1), -1)
        found[part, : kept.shape[1]] = kept
