"""Units by month with an adoption of known value, for estimates without randomisation.

`docs/simulators.md` describes the distributions. A world is determined by its settings and a seed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scorer.causal.panel import NEVER, Panel

Effect: TypeAlias = Literal["none", "constant", "growing", "confounded", "chained", "late"]
EFFECTS: Final[tuple[Effect, ...]] = ("none", "constant", "growing", "confounded", "chained", "late")
HOLDING: Final[tuple[Effect, ...]] = ("none", "constant", "growing")
"""Worlds in which adopters and matched units would have developed alike."""
LEADS: Final = (0, 1, 3, 6)
"""Months before adoption from which on the cause of late worlds acts."""
_FIRST: Final = 12
_RAMP: Final = 5.5
_BISECTIONS: Final = 60

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class AdoptionWorld:
    """Settings of a world.

    Attributes:
        effect: What adoption does, and whether the assumptions hold.
        units: Number of units.
        months: Number of months, from January 2024 on.
        adopting: Number of months in which units adopt, from the 13th on.
        share: Share of units that adopt.
        level: Mean monthly value.
        spread: Standard deviation of the logarithm of the lasting level.
        noise: Coefficient of variation of a month's value.
        tail: Distribution of the noise: `normal`, `lognormal`, or `gamma`.
        season: Amplitude of the year's course, as a share.
        strength: By how much the log-odds of adoption grow with one standard deviation of what selects.
        selection: What selects: the lasting `level`, or the `value` of the 12 months before.
        monthly: Mean effect of a month.
        growth: Of confounded and late worlds: relative change per month for one standard deviation of the
            cause.
        lead: Of late worlds: months before adoption from which on the cause acts.
        seed: Of everything.
    """

    effect: Effect = "constant"
    units: int = 4_000
    months: int = 36
    adopting: int = 6
    share: float = 0.08
    level: float = 3.0
    spread: float = 0.8
    noise: float = 0.4
    tail: Literal["normal", "lognormal", "gamma"] = "lognormal"
    season: float = 0.3
    strength: float = 0.6
    selection: Literal["level", "value"] = "level"
    monthly: float = 1.0
    growth: float = 0.04
    lead: int = 3
    seed: int = 0


@dataclass(frozen=True)
class SimulatedAdoption:
    """A simulated world.

    Attributes:
        panel: The values.
        truth: The cumulative effect of the product by horizon, per adopter; without that of chained ones.
    """

    panel: Panel
    truth: dict[int, float]

    def values(self) -> pa.Table:
        """Return one row per unit and month: unit, period, value, transactions, currency."""
        size, months = self.panel.values.shape
        periods = [_day(one) for one in self.panel.months]
        return pa.table(
            {
                "unit": pa.array(np.repeat([f"u{at:06d}" for at in range(size)], months)),
                "period": pa.array(periods * size, pa.date32()),
                "value": self.panel.values.reshape(-1).astype(np.float64),
                "transactions": self.panel.features["transactions"].reshape(-1).astype(np.float64),
                "currency": pa.array(["USD"] * (size * months)).dictionary_encode(),
            }
        )

    def adoptions(self) -> pa.Table:
        """Return one row per adoption: unit, product, adopted."""
        rows: list[dict[str, Any]] = []
        for name, adopted in {"product": self.panel.adopted, **self.panel.others}.items():
            rows += [
                {"unit": f"u{at:06d}", "product": name, "adopted": _day(self.panel.months[adopted[at]])}
                for at in np.flatnonzero(adopted >= 0)
            ]
        schema = pa.schema([("unit", pa.string()), ("product", pa.string()), ("adopted", pa.date32())])
        return pa.Table.from_pylist(rows, schema=schema)


def simulate_adoption(world: AdoptionWorld) -> SimulatedAdoption:
    """Simulate a world; equal settings give equal values."""
    generator = np.random.default_rng([world.seed, EFFECTS.index(world.effect)])
    size, when = world.units, np.arange(world.months)
    standard = generator.normal(size=size)
    level = world.level * np.exp(world.spread * standard - world.spread**2 / 2)
    course = 1.0 + world.season * np.sin(2 * np.pi * when / 12)
    value = level[:, None] * course * _noise(world, generator)
    month = generator.integers(_FIRST, _FIRST + world.adopting, size=size)
    if world.effect in ("confounded", "late"):
        # A cause that is not in the data makes units grow, and adopt.
        hidden = generator.normal(size=size)
        grown = when - _FIRST
        if world.effect == "late":
            grown = np.maximum(when - month[:, None] + world.lead + 1, 0)
        value *= np.exp(world.growth * hidden[:, None] * grown)
        score = 2.0 * world.strength * hidden
    elif world.selection == "level":
        score = world.strength * standard
    else:
        before = np.array([value[at, month[at] - _FIRST : month[at]].sum() for at in range(size)])
        logs = np.log(np.maximum(before, 0.1 * world.level))
        score = world.strength * (logs - logs.mean()) / logs.std()
    adopts = generator.random(size) < _probability(score, world.share)
    adopted = np.where(adopts, month, NEVER)
    since = when[None, :] - month[:, None]
    value += np.where(adopts[:, None] & (since >= 0), _monthly(world, since), 0.0)
    others: dict[str, npt.NDArray[np.int64]] = {}
    if world.effect == "chained":
        second = generator.random(size) < np.where(adopts, 0.5, 0.06)
        start = np.minimum(month + generator.integers(0, 3, size=size), world.months - 1)
        others["second"] = np.where(second, start, NEVER)
        value += np.where(second[:, None] & (when[None, :] >= start[:, None]), world.monthly, 0.0)
    transactions = generator.poisson(np.maximum(level, 0.0)[:, None] * course * 2.0).astype(np.float32)
    truth = {
        horizon: float(_monthly(world, np.arange(horizon)).sum())
        for horizon in range(1, world.months - _FIRST)
    }
    panel = Panel(
        months=tuple(f"{2024 + at // 12}-{at % 12 + 1:02d}" for at in range(world.months)),
        values=value.astype(np.float32),
        adopted=adopted.astype(np.int64),
        features={"transactions": transactions},
        others=others,
    )
    return SimulatedAdoption(panel, truth)


def varied(effect: Effect, seed: int) -> AdoptionWorld:
    """Return a world whose size, tails, noise, season, selection and share are drawn by the seed."""
    generator = np.random.default_rng([seed, 99, EFFECTS.index(effect)])
    world = AdoptionWorld(effect=effect, seed=seed)
    return replace(
        world,
        units=int(generator.integers(3_000, 9_000)),
        share=float(generator.uniform(0.05, 0.2)),
        spread=float(generator.uniform(0.4, 1.0)),
        noise=float(generator.uniform(0.2, 0.6)),
        tail=("normal", "lognormal", "gamma")[int(generator.integers(3))],
        season=float(generator.uniform(0.0, 0.4)),
        strength=float(generator.uniform(0.2, 0.8)),
        selection=("level", "value")[int(generator.integers(2))],
        lead=LEADS[int(generator.integers(len(LEADS)))],
    )


def _noise(world: AdoptionWorld, generator: np.random.Generator) -> Floats:
    shape = (world.units, world.months)
    if world.tail == "normal":
        return np.asarray(1.0 + world.noise * generator.normal(size=shape))
    if world.tail == "gamma":
        return np.asarray(generator.gamma(1.0 / world.noise**2, world.noise**2, size=shape))
    sigma = np.sqrt(np.log1p(world.noise**2))
    return np.asarray(np.exp(sigma * generator.normal(size=shape) - sigma**2 / 2))


def _monthly(world: AdoptionWorld, since: npt.NDArray[np.int64]) -> Floats:
    """Return the effect of months since adoption."""
    if world.effect == "none":
        return np.zeros(since.shape)
    if world.effect == "growing":
        return np.asarray(world.monthly * np.minimum(since + 0.0, 2 * _RAMP) / _RAMP)
    return np.full(since.shape, world.monthly)


def _probability(score: Floats, share: float) -> Floats:
    """Return logistic probabilities of scores whose mean is a share."""
    low, high = -20.0, 20.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if (1 / (1 + np.exp(-score - middle))).mean() > share else (middle, high)
    return np.asarray(1 / (1 + np.exp(-score - middle)))


def _day(month: str) -> date:
    year, number = month.split("-")
    return date(int(year), int(number), 1)
