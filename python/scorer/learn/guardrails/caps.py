"""Prices on capped attributes: the duals at which a policy's mean use meets its limits.

A policy with caps runs on s(a) = q(a) - sum_j lambda_j c_j(a) (docs/bundle-format.md). Wanted are the
least prices lambda >= 0 with E_pi[c_j] <= B_j, and E_pi[c_j] = B_j where lambda_j > 0: the saddle
point of the Lagrangian over the window. The use of an attribute falls as its own price rises, so each
price is found by bisection with the others held, in turns, until none moves (for softmax that is
coordinate descent on a convex function). Every pmf comes from the policy that serves, floors and
exploration included: what they force cannot be priced away, and a limit below it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scorer.bundle.models import Action, Cap, PolicySpec
from scorer.learn.errors import DataError
from scorer.stats.arrays import Bools, Floats

if TYPE_CHECKING:
    from scorer.bundle import Bundle, Inspection


# More contexts do not make prices better: the mean of an attribute is known to a fraction of a point.
SOLVER_ROWS = 5_000
_SWEEPS = 60
_STEPS = 40


@dataclass(frozen=True)
class Duals:
    """Solved prices, in the order of `attributes`.

    Attributes:
        attributes: what is capped.
        limits: B_j.
        prices: lambda_j.
        use: E_pi[c_j] at these prices.
        unpriced: E_pi[c_j] at price 0.
        sensitivity: how fast each use falls with its own price, -dE_pi[c_j]/dlambda_j around the
            solution; what a controller's gain is measured in.
        value: mean expected reward at these prices, by the scores given.
        unpriced_value: the same at price 0; the difference is what the caps cost.
        rows: contexts that the means are over.
    """

    attributes: tuple[str, ...]
    limits: tuple[float, ...]
    prices: tuple[float, ...]
    use: tuple[float, ...]
    unpriced: tuple[float, ...]
    sensitivity: tuple[float, ...]
    value: float
    unpriced_value: float
    rows: int

    def caps(self) -> list[Cap]:
        """Return the caps as a policy takes them."""
        return [
            Cap(attribute=name, lambda_=price, limit=limit)
            for name, price, limit in zip(self.attributes, self.prices, self.limits, strict=True)
        ]


def attribute_table(actions: Sequence[Action], attributes: Sequence[str]) -> Floats:
    """`[attributes, actions]`; an action without the attribute uses none of it.

    Raises:
        DataError: no action has one of them.
    """
    for name in attributes:
        if not any(name in action.attributes for action in actions):
            raise DataError(f'cap "{name}": no action has this attribute; add it to the catalogue')
    return np.array([[action.attributes.get(name, 0.0) for action in actions] for name in attributes])


def solve_caps(
    spec: PolicySpec,
    actions: Sequence[Action],
    scores: Floats,
    eligible: Bools,
    limits: Mapping[str, float],
    *,
    tolerance: float = 1e-4,
    start: Mapping[str, float] | None = None,
) -> Duals:
    """Solves for the prices of every cap at once.

    Args:
        spec: the policy; its own caps are replaced.
        actions: the catalogue, with attributes.
        scores: `[n, actions]` of the last window, unpriced; with voters `[n, 1 + voters, actions]`.
        eligible: `[n, actions]`.
        limits: attribute to B_j, in the attribute's unit per decision.
        tolerance: how far below its limit a priced attribute may end, as a share of the limit. Use is a
            step function of price for greedy rules: the step that crosses the limit is taken.
        start: prices to start from, such as those that are live.

    Raises:
        DataError: a limit cannot be met at any price, or nothing is given.
    """
    from scorer.bundle.policy import Policy

    if len(scores) > SOLVER_ROWS:
        picked = np.linspace(0, len(scores) - 1, SOLVER_ROWS).astype(np.int64)
        scores, eligible = scores[picked], eligible[picked]
    voted = np.expand_dims(eligible, 1) if scores.ndim == 3 else eligible
    clean = np.where(voted, scores, 0.0)

    def pmf(caps: list[Cap]) -> Floats:
        return Policy(spec.model_copy(update={"caps": caps}), actions).pmf(clean, eligible)

    reward = clean[:, 0] if clean.ndim == 3 else clean
    return _duals(pmf, reward, actions, limits, tolerance, start or {})


def solve_bundle(
    path: Path,
    contexts: npt.NDArray[np.float32],
    eligible: Bools,
    limits: Mapping[str, float],
    *,
    tolerance: float = 1e-4,
) -> Duals:
    """Solves for the prices of a bundle's policy on logged contexts, from the prices that it has.

    Args:
        path: the bundle's directory.
        contexts: `[n, features]`.
        eligible: `[n, actions]`.
        limits: attribute to B_j.
        tolerance: see `solve_caps`.

    Raises:
        DataError: it is no action bundle, or a limit cannot be met.
    """
    from scorer.bundle import Bundle, inspect

    inspection = inspect(path)
    spec = policy_of(inspection)
    if len(contexts) > SOLVER_ROWS:
        picked = np.linspace(0, len(contexts) - 1, SOLVER_ROWS).astype(np.int64)
        contexts, eligible = contexts[picked], eligible[picked]
    start = {cap.attribute: cap.lambda_ for cap in spec.caps}
    _, rewards = Bundle.load(path).evaluate(contexts, eligible=eligible)
    if spec.rule != "bagging":
        return solve_caps(
            spec, inspection.actions, rewards, eligible, limits, tolerance=tolerance, start=start
        )

    # The members' votes are the bundle's own business: each set of prices is tried on the bundle itself.
    def pmf(caps: list[Cap]) -> Floats:
        return drafted(path, caps).evaluate(contexts, eligible=eligible)[0]

    reward = np.where(eligible, rewards, 0.0)
    return _duals(pmf, reward, inspection.actions, limits, tolerance, start)


def policy_of(inspection: Inspection) -> PolicySpec:
    """The policy of an action bundle."""
    last = inspection.manifest.program[-1]
    if last.kind != "policy":
        raise DataError(f'"{inspection.path}" is a bundle of scores; caps belong to bundles of actions')
    return last.policy


def drafted(path: Path, caps: list[Cap]) -> Bundle:
    """A bundle in memory that differs in its caps."""
    from scorer import bridge
    from scorer.bundle import Bundle

    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["program"][-1]["policy"]["caps"] = [
        cap.model_dump(mode="json", by_alias=True, exclude_none=True) for cap in caps
    ]
    made = ("golden.bin", "reference.json")
    files = {name: (path / name).read_bytes() for name in manifest["files"] if name not in made}
    head = {name: value for name, value in manifest.items() if name not in {"digest", "files"}}
    return Bundle(bridge.draft_bundle(json.dumps(head), files))


def _duals(
    pmf_at: Callable[[list[Cap]], Floats],
    reward: Floats,
    actions: Sequence[Action],
    limits: Mapping[str, float],
    tolerance: float,
    start: Mapping[str, float],
) -> Duals:
    if len(reward) == 0 or not limits:
        raise DataError("caps: no decisions or no limits; give a window of decisions and at least one cap")
    names, bounds = tuple(limits), np.array(list(limits.values()))
    table = attribute_table(actions, names)

    def pmf(prices: Floats) -> Floats:
        return pmf_at(
            [Cap(attribute=name, lambda_=float(price)) for name, price in zip(names, prices, strict=True)]
        )

    def use(prices: Floats) -> Floats:
        return np.asarray(pmf(prices).mean(axis=0) @ table.T)

    free = pmf(np.zeros(len(names)))
    first = np.array([start.get(name, 0.0) for name in names])
    prices = _solve(use, names, bounds, table, first, tolerance)
    final = pmf(prices)
    steps = [max(price * 0.1, 0.01 / _scale(row)) for price, row in zip(prices, table, strict=True)]
    return Duals(
        attributes=names,
        limits=tuple(bounds.tolist()),
        prices=tuple(prices.tolist()),
        use=tuple((final.mean(axis=0) @ table.T).tolist()),
        unpriced=tuple((free.mean(axis=0) @ table.T).tolist()),
        sensitivity=tuple(_slope(use, prices, at, step) for at, step in enumerate(steps)),
        value=float((final * reward).sum(axis=1).mean()),
        unpriced_value=float((free * reward).sum(axis=1).mean()),
        rows=len(reward),
    )


def _solve(
    use: Callable[[Floats], Floats],
    names: Sequence[str],
    bounds: Floats,
    table: Floats,
    start: Floats,
    tolerance: float,
) -> Floats:
    prices = start.copy()
    for _ in range(_SWEEPS):
        before = prices.copy()
        for at, name in enumerate(names):
            prices[at] = _bisect(use, prices, at, bounds[at], tolerance, _scale(table[at]), name)
        slack = bounds - use(prices)
        met = (slack >= 0) & ((prices == 0) | (slack <= tolerance * bounds))
        if met.all() or np.allclose(prices, before, rtol=1e-6, atol=1e-12):
            return prices
    return prices


def _bisect(
    use: Callable[[Floats], Floats],
    prices: Floats,
    at: int,
    bound: float,
    tolerance: float,
    scale: float,
    name: str,
) -> float:
    """The least price of one attribute that meets its limit, the others held."""

    def used(price: float) -> float:
        return float(use(np.where(np.arange(len(prices)) == at, price, prices))[at])

    low, high = 0.0, prices[at] if prices[at] > 0 else 0.02 / scale
    if used(0.0) <= bound:
        return 0.0
    # Scores are probabilities: a price of a few hundred points outweighs them all.
    while (at_high := used(high)) > bound:
        low, high = high, high * 4
        if high * scale > 1e4:
            raise DataError(
                f'cap "{name}": {bound:g} cannot be met: {at_high:.6g} is left at any price, by floors, '
                "exploration or payments without another eligible action; raise the limit or lower the floors"
            )
    for _ in range(_STEPS):
        if bound - at_high <= tolerance * bound or high - low <= 1e-9 / scale:
            break
        middle = (low + high) / 2
        value = used(middle)
        low, high, at_high = (low, middle, value) if value <= bound else (middle, high, at_high)
    return high


def _slope(use: Callable[[Floats], Floats], prices: Floats, at: int, step: float) -> float:
    """-dE[c]/dlambda by a central difference, wide enough to see more than one decision's step."""
    up, down = prices.copy(), prices.copy()
    up[at] += step
    down[at] = max(0.0, down[at] - step)
    return float((use(down)[at] - use(up)[at]) / (up[at] - down[at]))


def _scale(attribute: Floats) -> float:
    """What one unit of price moves: the attribute's range over the catalogue."""
    return float(attribute.max() - attribute.min()) or 1.0
