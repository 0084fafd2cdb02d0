"""Worlds: the hidden truth of a simulation, drawn from a seed that is independent of the traffic's.

A world defines the shoppers, the responses of issuers, and their changes over time. `OWN` is the world of the
demo and of the benchmarks; its truth is additive on the log-odds in issuer x factor. `standard(count)` lists
others: other seeds with the same formulas, gradual drift, no drift, and two kinds of interactions.
`drawn(count)` draws the structure of worlds from their seeds, from families that are split into those of
development and those of judging. docs/simulators.md states the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from examples.simulators.actions import FACTORS, codes
from examples.simulators.payments import (
    DEVICES,
    ISSUER_NAMES,
    SCHEMES,
    WORLD_SEED,
    Contexts,
    Floats,
    Ints,
    OddsEffect,
    Payments,
    World,
)
from scorer.learn.errors import DataError

# Seed of the choice of issuers that change, and of their new parameters.
DRIFT_SEED = 20_260_606

Drift = Literal["abrupt", "gradual", "none", "seasonal", "outage"]
Interactions = Literal["none", "crossed", "forest"]
Issuers = Literal["usual", "heavy", "newcomers"]
GRADUAL_ISSUERS, GRADUAL_FIRST_WEEK, GRADUAL_LAST_WEEK = 6, 3, 9
SEASONAL_ISSUERS, SEASON_DAYS = 6, 28
OUTAGE_DAYS, OUTAGE_ODDS = 3, 4.0
NEWCOMERS, NEWCOMERS_FIRST_WEEK = 2, 5
JUDGING_SEED = 10_000
"""Worlds with this seed or a higher one are for judging only: nothing is tuned on them."""

_THREE_DS, _EXEMPTION, _ROUTE, _MESSAGE = (
    list(FACTORS).index(name) for name in ("three_ds", "exemption", "route", "message")
)
_AMOUNT_EDGES = np.array([20.0, 50.0, 100.0])
_HOUR_EDGES = np.array([7, 13, 19])


@dataclass(frozen=True)
class WorldSpec:
    """The definition of a world.

    Attributes:
        name: Name in tables.
        seed: Seed of shoppers, cards, issuers' parameters and interactions.
        drift_seed: Seed of the choice of issuers that change, and of their new parameters.
        drift: "abrupt" at the plan's drift week, "gradual" from week 3 to week 9, "seasonal" (there and back
            every four weeks), "outage" (a route fails for three days from the drift week on), or "none".
        interactions: Effects besides issuer x factor: "none", "crossed" (three-way tables, standard deviation
            .3 to .4 each), or "forest" (a random forest on context and action, standard deviation .7).
        issuers: Shares of the cards: "usual", "heavy" (proportional to rank^-1.5 in an order drawn by the
            seed), or "newcomers" (two issuers drawn by the seed have no payments before week 5; until then
            their shoppers pay with cards of the first issuer that is neither of the two).
    """

    name: str = "own"
    seed: int = WORLD_SEED
    drift_seed: int = DRIFT_SEED
    drift: Drift = "abrupt"
    interactions: Interactions = "none"
    issuers: Issuers = "usual"


_SEED, _DRIFT_SEED = 1_000_000, 2_000_000
OWN = WorldSpec()

_OTHER: tuple[str, Drift, Interactions] = ("other", "abrupt", "none")
_CROSSED: tuple[str, Drift, Interactions] = ("crossed", "abrupt", "crossed")
_FOREST: tuple[str, Drift, Interactions] = ("forest", "abrupt", "forest")
_GRADUAL: tuple[str, Drift, Interactions] = ("gradual", "gradual", "none")
_CALM: tuple[str, Drift, Interactions] = ("calm", "none", "none")
_CYCLE = (_OTHER, _OTHER, _OTHER, _OTHER, _GRADUAL, _CALM, _CROSSED, _CROSSED, _FOREST, _FOREST)


def standard(count: int, first_seed: int = 1) -> tuple[WorldSpec, ...]:
    """Return `OWN` and `count - 1` other worlds.

    The others repeat a cycle of ten: four that differ in the seeds only, one with gradual drift, one without
    drift, two with crossed interactions, two with a hidden forest.

    Args:
        count: Number of worlds, at least 1.
        first_seed: Seed of the first other world; the next ones follow. Another value gives worlds that have
            not been used before.

    Raises:
        DataError: `count` is below 1.
    """
    _check_count(count)
    specs = [OWN]
    for number in range(count - 1):
        kind, drift, interactions = _CYCLE[number % len(_CYCLE)]
        seed = first_seed + number
        specs.append(WorldSpec(f"{kind}-{seed}", _SEED + seed, _DRIFT_SEED + seed, drift, interactions))
    return tuple(specs)


def families(*, judging: bool) -> list[tuple[Drift, Interactions, Issuers]]:
    """Return the structures of worlds that are for judging, or those that are for development.

    Every value of drift, interactions and issuers is in both halves; no combination is in both.
    """
    return [
        (drift, interactions, issuers)
        for place, drift in enumerate(get_args(Drift))
        for of_drift, interactions in enumerate(get_args(Interactions))
        for of_both, issuers in enumerate(get_args(Issuers))
        if ((place + of_drift + of_both) % 2 == 1) == judging
    ]


def drawn(count: int, first_seed: int = 1) -> tuple[WorldSpec, ...]:
    """Return worlds whose structure is drawn by their seeds.

    Seeds from `JUDGING_SEED` on draw among the families for judging, lower ones among those for development.

    Args:
        count: Number of worlds, at least 1.
        first_seed: Seed of the first world; the next ones follow.

    Raises:
        DataError: `count` is below 1.
    """
    _check_count(count)
    specs = []
    for seed in range(first_seed, first_seed + count):
        known = families(judging=seed >= JUDGING_SEED)
        drift, interactions, issuers = known[int(np.random.default_rng([seed, 13]).integers(len(known)))]
        name = f"{drift}-{interactions}-{issuers}-{seed}"
        specs.append(WorldSpec(name, _SEED + seed, _DRIFT_SEED + seed, drift, interactions, issuers))
    return tuple(specs)


def _check_count(count: int) -> None:
    if count < 1:
        raise DataError(f"worlds: {count} were asked for; at least 1 is needed")


def issuer_shares(spec: WorldSpec) -> Floats | None:
    """Return `[issuers]` shares of the cards; None: the usual ones."""
    if spec.issuers != "heavy":
        return None
    rank = 1 + np.random.default_rng([spec.seed, 14]).permutation(len(ISSUER_NAMES))
    return np.asarray(rank**-1.5 / (rank**-1.5).sum())


def issuer_of_cards(spec: WorldSpec, issuer: Ints, day: int) -> Ints:
    """Return the issuers of payments on `day` (from 0): newcomers' shoppers have other cards at first.

    Args:
        spec: The world.
        issuer: `[n]` issuers of the shoppers' cards.
        day: Day of the payments.
    """
    if spec.issuers != "newcomers" or day >= 7 * (NEWCOMERS_FIRST_WEEK - 1):
        return issuer
    new = np.random.default_rng([spec.seed, 15]).permutation(len(ISSUER_NAMES))[:NEWCOMERS]
    instead = next(one for one in range(NEWCOMERS + 1) if one not in new)
    return np.asarray(np.where(np.isin(issuer, new), instead, issuer))


def draw_effect(spec: WorldSpec) -> OddsEffect | None:
    """Return the world's interactions; None if its truth is additive."""
    if spec.interactions == "crossed":
        return Crossed(spec.seed)
    return HiddenForest(spec.seed) if spec.interactions == "forest" else None


class Crossed:
    """Five three-way tables, such as amount x device x route, with normal entries.

    Args:
        seed: Seed of the entries.
    """

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 11])
        sizes = [len(values) for values in FACTORS.values()]
        amounts, hours = len(_AMOUNT_EDGES) + 1, len(_HOUR_EDGES) + 1
        self._amount_device_route = rng.normal(0, 0.4, (amounts, len(DEVICES), sizes[_ROUTE]))
        self._amount_device_three_ds = rng.normal(0, 0.3, (amounts, len(DEVICES), sizes[_THREE_DS]))
        self._issuer_three_ds_route = rng.normal(0, 0.4, (len(ISSUER_NAMES), sizes[_THREE_DS], sizes[_ROUTE]))
        self._hour_scheme_message = rng.normal(0, 0.3, (hours, len(SCHEMES), sizes[_MESSAGE]))
        self._scheme_amount_exemption = rng.normal(0, 0.3, (len(SCHEMES), amounts, sizes[_EXEMPTION]))

    def odds(self, given: Contexts) -> Floats:
        """Return the `[n, K]` effects on the log-odds."""
        amount = np.searchsorted(_AMOUNT_EDGES, given.amount)
        hour = np.searchsorted(_HOUR_EDGES, given.hour, side="right")
        factor = codes().T
        return np.asarray(
            self._amount_device_route[amount, given.device][:, factor[_ROUTE]]
            + self._amount_device_three_ds[amount, given.device][:, factor[_THREE_DS]]
            + self._issuer_three_ds_route[given.issuer][:, factor[_THREE_DS], factor[_ROUTE]]
            + self._hour_scheme_message[hour, given.scheme][:, factor[_MESSAGE]]
            + self._scheme_amount_exemption[given.scheme, amount][:, factor[_EXEMPTION]]
        )


class HiddenForest:
    """Random trees whose splits are on the context or on the action with equal probability.

    A leaf is a conjunction of a condition on the payment and one on the action, so its indicator is an outer
    product and the forest is one product of matrices.

    Args:
        seed: Seed of the trees.
        trees: Number of trees.
        depth: Depth of each tree.
        spread: Standard deviation of the effect over payments and actions, on the log-odds.
    """

    def __init__(self, seed: int, trees: int = 60, depth: int = 5, spread: float = 0.7) -> None:
        self._seed, self._trees, self._depth, self._spread = seed, trees, depth, spread

    def odds(self, given: Contexts) -> Floats:
        """Return the `[n, K]` effects on the log-odds."""
        payment, action, value = self._leaves
        columns = _columns(given)
        held = np.ones((len(given), len(value)), dtype=np.float32)
        for leaf, conditions in enumerate(payment):
            for column, threshold, above in conditions:
                held[:, leaf] *= (columns[:, column] > threshold) == above
        return np.asarray(held @ (value[:, None] * action), dtype=np.float64)

    @cached_property
    def _leaves(
        self,
    ) -> tuple[list[list[tuple[int, float, bool]]], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Conditions on the payment by leaf, `[leaves, K]` conditions on the action, `[leaves]` values."""
        rng = np.random.default_rng([self._seed, 12])
        payment: list[list[tuple[int, float, bool]]] = []
        action: list[npt.NDArray[np.bool_]] = []

        def grow(
            depth: int, conditions: list[tuple[int, float, bool]], actions: npt.NDArray[np.bool_]
        ) -> None:
            if depth == 0:
                payment.append(conditions)
                action.append(actions)
                return
            if rng.random() < 0.5:
                factor = int(rng.integers(len(FACTORS)))
                level = int(rng.integers(len(list(FACTORS.values())[factor])))
                chosen = codes()[:, factor] == level
                for side in (chosen, ~chosen):
                    grow(depth - 1, conditions, actions & side)
                return
            column = int(rng.integers(_COLUMNS))
            threshold = float(rng.random())
            for above in (False, True):
                grow(depth - 1, [*conditions, (column, threshold, above)], actions)

        for _ in range(self._trees):
            grow(self._depth, [], np.ones(len(codes()), dtype=bool))
        # Each tree contributes one leaf's value per payment and action, so variances add up over trees.
        value = rng.normal(0, self._spread / np.sqrt(self._trees), len(payment))
        return payment, np.array(action, dtype=np.float32), value.astype(np.float32)


_COLUMNS = 8


def _columns(given: Contexts) -> Floats:
    """Return `[n, 8]` the context in comparable units, about 0 to 1 each."""
    return np.column_stack(
        [
            np.minimum(given.amount / 200, 1),
            given.hour / 24,
            (given.issuer * 5 % len(ISSUER_NAMES) + 0.5) / len(ISSUER_NAMES),
            (given.scheme + 0.5) / len(SCHEMES),
            (given.device + 0.5) / len(DEVICES),
            np.minimum(given.earlier_attempts, 3) / 3,
            given.has_token * 0.5 + 0.25,
            np.minimum(given.low_value_count, 5) / 5,
        ]
    )


def drifted(before: World, count: int, seed: int = DRIFT_SEED) -> World:
    """Return the world after `count` issuers have changed: all their parameters are drawn anew.

    Args:
        before: The world before the change.
        count: Number of issuers.
        seed: Seed of the choice of issuers and of the new parameters.
    """
    which = np.random.default_rng(seed).permutation(len(ISSUER_NAMES))[:count]
    after, changed = World.draw(seed), {}
    for column in fields(World):
        if column.name != "scheme_route":
            changed[column.name] = getattr(before, column.name).copy()
            changed[column.name][which] = getattr(after, column.name)[which]
    return replace(before, **changed)


def blended(before: World, after: World, share: float) -> World:
    """Return the world `share` of the way from `before` to `after`, parameter by parameter."""

    def mixed(name: str) -> Any:
        return (1 - share) * getattr(before, name) + share * getattr(after, name)

    return World(**{column.name: mixed(column.name) for column in fields(World)})


def history(
    spec: WorldSpec, weeks: int, drift_week: int | None, drift_issuers: int
) -> list[tuple[int, Payments]]:
    """Return the authorisation environments of a world, each with the day (from 0) on which it begins.

    Args:
        spec: The world.
        weeks: Number of weeks.
        drift_week: Week (from 1) at whose start an abrupt drift or an outage happens; None: never.
        drift_issuers: Number of issuers that an abrupt drift changes.
    """
    effect, before = draw_effect(spec), World.draw(spec.seed)
    stages = [(0, before)]
    if spec.drift == "abrupt" and drift_week is not None:
        stages.append((7 * (drift_week - 1), drifted(before, drift_issuers, spec.drift_seed)))
    elif spec.drift == "gradual":
        after = drifted(before, GRADUAL_ISSUERS, spec.drift_seed)
        first, last = 7 * (GRADUAL_FIRST_WEEK - 1), 7 * (GRADUAL_LAST_WEEK - 1)
        stages += [
            (day, blended(before, after, (day - first + 1) / (last - first + 1)))
            for day in range(first, last + 1)
        ]
    elif spec.drift == "seasonal":
        after = drifted(before, SEASONAL_ISSUERS, spec.drift_seed)
        stages = [
            (day, blended(before, after, (1 - np.cos(2 * np.pi * day / SEASON_DAYS)) / 2))
            for day in range(7 * weeks)
        ]
    elif spec.drift == "outage" and drift_week is not None:
        first = 7 * (drift_week - 1)
        route = before.route.copy()
        route[:, int(np.random.default_rng(spec.drift_seed).integers(route.shape[1]))] -= OUTAGE_ODDS
        stages += [(first, replace(before, route=route)), (first + OUTAGE_DAYS, before)]
    return [(day, Payments.of(world, effect)) for day, world in stages]
