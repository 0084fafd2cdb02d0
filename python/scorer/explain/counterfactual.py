"""Counterfactuals: the smallest change of actionable features with which a bundle decides otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Final, Literal

import numpy as np

from scorer.bundle.check import read_schema, verify
from scorer.bundle.loaded import Bundle
from scorer.bundle.models import Feature
from scorer.errors import BundleError
from scorer.explain.dependence import label_of
from scorer.explain.thresholds import ForestThresholds, before
from scorer.stats.arrays import Bools, Floats, Ints, Rows32

_BLOCK: Final = 1 << 15
"""Combinations that are scored at a time."""
_MOST_AT_ONCE: Final = 1 << 21
"""Largest number of combinations of one set of features."""
MAX_CHANGES: Final = 5


@dataclass(frozen=True, slots=True)
class ActionableFeature:
    """A feature that may be changed, and how.

    Attributes:
        name: Name of the feature.
        low: Least value of a number; None: the schema's minimum.
        high: Greatest value of a number; None: the schema's maximum.
        levels: Levels that a category may get; empty: every level.
        direction: Whether a number may only grow or only shrink.
        whole: Whether a number must be whole.
    """

    name: str
    low: float | None = None
    high: float | None = None
    levels: tuple[str, ...] = ()
    direction: Literal["any", "increase", "decrease"] = "any"
    whole: bool = False


@dataclass(frozen=True, slots=True)
class FeatureChange:
    """A change of one feature, as text and as encoded values."""

    feature: str
    before: str
    after: str
    value: float
    """The new value; the code of a category."""


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """A changed row with the decision that was wanted, as the engine scores it."""

    changes: tuple[FeatureChange, ...]
    distance: float
    """Sum over the changes: of a number the change as a share of its range, of others 1."""
    score: float
    label: str


@dataclass(frozen=True, slots=True)
class CounterfactualResult:
    """The result of a search."""

    label: str
    """Decision on the row as it is."""
    score: float
    wanted: str
    found: Counterfactual | None
    """The smallest change; None: none was found."""
    exhaustive: bool
    """Whether everything within the bounds was searched. If so, no smaller change exists; and if nothing was
    found, there is no change within the bounds."""
    evaluations: int
    """Changed rows that were scored."""
    words: str
    """The result in one sentence."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """The values that a feature may be changed to, nearest first, with their distances."""

    column: int
    feature: Feature
    values: Rows32
    distances: Floats


def find_counterfactual(
    directory: Path,
    row: Rows32,
    actionable: Sequence[ActionableFeature],
    *,
    label: str | None = None,
    changes: int = 3,
    evaluations: int = 2_000_000,
    progress: Callable[[int, int], None] | None = None,
) -> CounterfactualResult:
    """Find the smallest change of a row with which a score bundle gives a wanted decision.

    A forest is constant between the thresholds of its tests, so one value for each interval is enough: the
    one nearest to the present value. Fewer changes come first, then smaller distances. Every candidate is
    scored by the engine.

    Args:
        directory: Directory of the bundle.
        row: Encoded features ``[features]``.
        actionable: The features that may be changed.
        label: The wanted decision, or a lower band; None: the lowest band.
        changes: Largest number of changed features.
        evaluations: Largest number of changed rows that are scored.
        progress: Called with the evaluations done and their limit.

    Raises:
        BundleError: The bundle, the row, a feature or a range is not suitable.
    """
    bundle = verify(directory)
    wanted, limit = _wanted(bundle, label)
    if not 1 <= changes <= MAX_CHANGES:
        raise BundleError(f"changes: {changes} is given; give 1 to {MAX_CHANGES}")
    if evaluations < 1:
        raise BundleError(f"evaluations: {evaluations} is given; give at least 1")
    start = np.ascontiguousarray(row, dtype=np.float32)
    if start.shape != (bundle.num_features,):
        raise BundleError(f"row: it has shape {start.shape}, [{bundle.num_features}] is needed")
    bundle.check(start[None])
    now = bundle.score(start[None])
    score, band = float(now.scores[0]), int(now.bands[0])
    schema = read_schema(directory).features
    choices = _choices(Path(directory), bundle, schema, start, actionable)
    if band <= limit:
        words = f"The decision is {bundle.labels[band]} already, so nothing has to change."
        nothing = Counterfactual((), 0.0, score, bundle.labels[band])
        return CounterfactualResult(bundle.labels[band], score, wanted, nothing, True, 0, words)
    search = _Search(bundle, start, limit, evaluations, progress)
    best: tuple[Rows32, tuple[_Choice, ...], float] | None = None
    for count in range(1, min(changes, len(choices)) + 1):
        for chosen in combinations(choices, count):
            found = search.nearest(chosen, best[2] if best else math.inf)
            if found is not None:
                best = (found[0], chosen, found[1])
        if best is not None:
            break
    result = None if best is None else _verified(bundle, start, *best, limit)
    return CounterfactualResult(
        label=bundle.labels[band],
        score=score,
        wanted=wanted,
        found=result,
        exhaustive=search.is_exhaustive,
        evaluations=search.done,
        words=_words(result, wanted, changes, search),
    )


class _Search:
    def __init__(
        self,
        bundle: Bundle,
        start: Rows32,
        limit: int,
        most: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._bundle, self._start, self._limit, self._most = bundle, start, limit, most
        self._progress = progress
        self.done = 0
        self.is_exhaustive = True

    def nearest(self, chosen: Sequence[_Choice], within: float) -> tuple[Rows32, float] | None:
        """Return the nearest combination of values with a wanted decision, and its distance.

        Args:
            chosen: The features that are changed.
            within: Only smaller distances are searched.
        """
        sizes = [len(one.values) for one in chosen]
        if math.prod(sizes) > _MOST_AT_ONCE:
            # The nearest values of each feature are searched, and the result says that it is not complete.
            self.is_exhaustive = False
            each = int(_MOST_AT_ONCE ** (1 / len(chosen)))
            sizes = [min(size, each) for size in sizes]
        distances = np.zeros(1)
        for one, size in zip(chosen, sizes, strict=True):
            distances = (distances[:, None] + one.distances[None, :size]).reshape(-1)
        order = np.argsort(distances, kind="stable")
        order = order[: np.searchsorted(distances[order], within, side="left")]
        for whole in _blocks(order):
            block = whole[: self._most - self.done]
            if len(block) < len(whole):
                self.is_exhaustive = False
            if not len(block):
                return None
            places = np.unravel_index(block, sizes)
            rows = np.tile(self._start, (len(block), 1))
            for one, place in zip(chosen, places, strict=True):
                rows[:, one.column] = one.values[place]
            hits = np.flatnonzero(self._bundle.score(rows).bands <= self._limit)
            self.done += len(block)
            if self._progress is not None:
                self._progress(self.done, self._most)
            if len(hits):
                first = int(hits[0])
                return rows[first], float(distances[block[first]])
        return None


def _blocks(order: Ints) -> Iterator[Ints]:
    size = 256
    at = 0
    while at < len(order):
        yield order[at : at + size]
        at += size
        # The nearest change is often among the first ones.
        size = min(size * 4, _BLOCK)


def _wanted(bundle: Bundle, label: str | None) -> tuple[str, int]:
    if bundle.kind != "score":
        raise BundleError(
            f"{bundle.name} is an action bundle, whose policy draws an action; counterfactuals need the "
            "thresholds of a score bundle"
        )
    labels = list(bundle.labels)
    wanted = labels[0] if label is None else label
    if wanted not in labels:
        raise BundleError(f'label "{wanted}": {bundle.name} has the decisions {", ".join(labels)}')
    # Bands may share a label; the wanted one ends with its last band.
    return wanted, max(at for at, name in enumerate(labels) if name == wanted)


def _choices(
    directory: Path,
    bundle: Bundle,
    schema: Sequence[Feature],
    start: Rows32,
    actionable: Sequence[ActionableFeature],
) -> list[_Choice]:
    if not actionable:
        raise BundleError("actionable: no feature may be changed; name at least one")
    place = {feature.name: at for at, feature in enumerate(schema)}
    seen: set[str] = set()
    thresholds = ForestThresholds(directory)
    found = []
    for one in actionable:
        if one.name not in place:
            raise BundleError(f'actionable: {bundle.name} has no feature "{one.name}"; correct the name')
        if one.name in seen:
            raise BundleError(f'actionable: "{one.name}" is named twice; name it once')
        seen.add(one.name)
        column = place[one.name]
        feature, value = schema[column], float(start[column])
        if feature.type == "number":
            values, distances = _numbers(one, feature, value, thresholds.boundaries(column))
        else:
            values, distances = _levels(one, feature, value)
        if len(values):
            order = np.argsort(distances, kind="stable")
            found.append(_Choice(column, feature, values[order], distances[order]))
    return found


def _levels(one: ActionableFeature, feature: Feature, value: float) -> tuple[Rows32, Floats]:
    if one.low is not None or one.high is not None or one.direction != "any" or one.whole:
        raise BundleError(f'actionable: "{one.name}" is a {feature.type} and has no range; leave it out')
    if feature.type == "flag":
        codes = [0.0, 1.0]
        if one.levels:
            raise BundleError(f'actionable: "{one.name}" is a flag and has no levels; leave them out')
    else:
        unknown = [level for level in one.levels if level not in feature.categories]
        if unknown:
            raise BundleError(f'actionable: "{one.name}" has no level "{unknown[0]}"; correct the level')
        codes = [float(feature.categories.index(level)) for level in one.levels or feature.categories]
    values = np.array([code for code in codes if code != value], np.float32)
    return values, np.ones(len(values))


def _numbers(
    one: ActionableFeature, feature: Feature, value: float, boundaries: Rows32
) -> tuple[Rows32, Floats]:
    """Return one value for each interval between thresholds: the one nearest to the present value."""
    if one.levels:
        raise BundleError(f'actionable: "{one.name}" is a number and has no levels; give a range')
    low, high = _range(one, feature)
    if one.whole:
        # In each interval of whole numbers, the first one is that from which the tests are as at its start.
        starts = np.unique(np.ceil(boundaries.astype(np.float64)))
        below = starts - 1
        low, high = math.ceil(low), math.floor(high)
        starts, below = starts.astype(np.float32), below.astype(np.float32)
    else:
        starts, below = boundaries, before(boundaries)
    inside = np.array([low, high, 0.0], np.float32)
    if math.isnan(value):
        values = np.concatenate([starts, inside])
    else:
        up = np.concatenate([starts, inside])
        down = np.concatenate([below, inside])
        values = np.concatenate([up[up > value], down[down < value]])
    kept: Bools = (values >= np.float32(low)) & (values <= np.float32(high))
    if one.direction != "any" and not math.isnan(value):
        kept &= values > value if one.direction == "increase" else values < value
    values = np.unique(values[kept])
    if math.isnan(value):
        return values, np.ones(len(values))
    width = high - low
    distances = np.abs(values.astype(np.float64) - value)
    return values, distances / width if width > 0 else np.ones(len(values))


def _range(one: ActionableFeature, feature: Feature) -> tuple[float, float]:
    first = max(_ends(one.name, "low", one.low, feature.minimum))
    last = min(_ends(one.name, "high", one.high, feature.maximum))
    # Ends that are no float32 are rounded inwards.
    low, high = np.float32(first), np.float32(last)
    low = np.nextafter(low, np.float32(np.inf)) if float(low) < first else low
    high = np.nextafter(high, np.float32(-np.inf)) if float(high) > last else high
    if low > high:
        raise BundleError(
            f'actionable: the range of "{one.name}" is empty, from {first:g} to {last:g}; widen it'
        )
    return float(low), float(high)


def _ends(feature: str, name: str, given: float | None, allowed: float | None) -> list[float]:
    known = [float(end) for end in (given, allowed) if end is not None]
    if not known or not all(map(math.isfinite, known)):
        raise BundleError(
            f'actionable: "{feature}" has no {name} end, and the schema gives none; give one, as in '
            f"{feature}=0..100"
        )
    return known


def _verified(
    bundle: Bundle, start: Rows32, row: Rows32, chosen: Sequence[_Choice], distance: float, limit: int
) -> Counterfactual:
    """Score the changed row once more by itself, with the schema's checks of a server."""
    bundle.check(row[None])
    scored = bundle.score(row[None])
    band = int(scored.bands[0])
    if band > limit:
        raise BundleError(
            f"{bundle.name}: the changed row has another decision alone than among others; report this defect"
        )
    return Counterfactual(
        changes=tuple(
            FeatureChange(
                one.feature.name,
                label_of(one.feature, float(start[one.column])),
                label_of(one.feature, float(row[one.column])),
                float(row[one.column]),
            )
            for one in chosen
        ),
        distance=distance,
        score=float(scored.scores[0]),
        label=bundle.labels[band],
    )


def _words(found: Counterfactual | None, wanted: str, changes: int, search: _Search) -> str:
    if found is not None:
        said = " and ".join(f"{one.feature} were {one.after}" for one in found.changes)
        more = "" if search.is_exhaustive else " A smaller change may exist: the search was not complete."
        return f"The decision would be {found.label} if {said}.{more}"
    if search.is_exhaustive:
        return f"No change of at most {changes} of these features within their ranges gives {wanted}."
    return (
        f"No change that gives {wanted} was found in {search.done:,} evaluations. The search was not "
        "complete, so there may be one."
    )
