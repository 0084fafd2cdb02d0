"""Selection of features by cost and gain, on time-ordered folds before the test window.

A set of features is valued at its average precision over the folds minus a price times its cost. The search
is greedy: it removes (or adds) one group after the other, each time the one that leaves the most valuable
set, until nothing is left. The result does not depend on the order in which workers finish. Every evaluated
set is in the file, so a run that was killed continues with the same command.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from scorer.durable import write_atomically
from scorer.ids import SCHEME
from scorer.learn.errors import DataError
from scorer.learn.fraud.folds import Fold, fold_pool, fold_scores, fold_value
from scorer.learn.fraud.measures import measure_of
from scorer.learn.fraud.settings import FraudSettings, SelectSettings
from scorer.learn.fraud.table import FraudTable, read_table
from scorer.learn.fraud.task import ScoreTask, schema_digest
from scorer.learn.fraud.windows import TrainingWindows, earlier_windows, plan_windows
from scorer.stats.arrays import Floats
from scorer.stats.blocks import Blocks, Draws
from scorer.stats.precision_recall import RankedScores

_NOT_INPUT: Final = {"threads", "tune", "value", "gate", "confidence", "bootstrap"}
"""Settings that no evaluation depends on."""
_OF_SEARCH: Final = {"direction", "price", "errors", "keep", "workers", "cost_unit", "costs", "default_cost"}
"""Settings of the search, which can change while the evaluated sets are kept."""


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SelectionStep(_Stored):
    """A set of groups that the search went through.

    Attributes:
        changed: The group that was removed or added; empty for the first set.
        groups: Its groups, in order of the schema.
        average_precision: Mean over the folds.
        folds: Average precision on each fold, the latest first.
        cost: Sum of the costs of its groups.
        worth: Average precision minus price times cost.
        error: Standard error of the difference of the average precision to the best set, paired by day.
    """

    changed: str
    groups: tuple[str, ...]
    average_precision: float
    folds: tuple[float, ...]
    cost: float
    worth: float
    error: float = 0.0


class PairedInterval(_Stored):
    """A difference with its interval."""

    value: float
    low: float | None
    high: float | None


class FeatureSelection(_Stored):
    """The result of a selection.

    Attributes:
        input: Digest of data, windows and settings that the evaluations depend on.
        data: Digest of the data.
        features_digest: Digest of the features that were chosen from.
        direction: Order of the search.
        cost_unit: Unit of the costs.
        price: Average precision per unit of cost.
        errors: How many standard errors the worth of the chosen set may be below the best one.
        groups: Features of each group, in order of the schema.
        costs: Cost of each group.
        steps: The sets, in order of the search.
        chosen: Position of the chosen set in `steps`.
        difference: Average precision of the chosen set minus that of all features, with a paired interval
            over the days of all folds. The folds have chosen the set, so the interval is optimistic.
        evaluated: Average precision of each evaluated set on each fold, by the positions of its groups.
    """

    format: Literal[1] = 1
    input: str
    data: str
    features_digest: str
    direction: str
    cost_unit: str
    price: float
    errors: float
    groups: dict[str, tuple[str, ...]]
    costs: dict[str, float]
    steps: tuple[SelectionStep, ...] = ()
    chosen: int | None = None
    difference: PairedInterval | None = None
    evaluated: dict[str, tuple[float, ...]] = {}

    @property
    def best(self) -> SelectionStep:
        """The chosen set.

        Raises:
            DataError: The search was not finished.
        """
        if self.chosen is None:
            raise DataError("the selection is not finished; run `scorer learn fraud select` again")
        return self.steps[self.chosen]

    @property
    def whole(self) -> SelectionStep:
        """The set of all groups."""
        return max(self.steps, key=lambda one: len(one.groups))

    def features(self, groups: Iterable[str]) -> tuple[str, ...]:
        """Return the features of some groups, in order of the schema."""
        return tuple(name for group in groups for name in self.groups[group])

    def notes(self) -> dict[str, object]:
        """Return what the lineage of a bundle records."""
        best, whole = self.best, self.whole
        return {
            "schema": self.features_digest,
            "data": self.data,
            "direction": self.direction,
            "price": self.price,
            "cost_unit": self.cost_unit,
            "features": list(self.features(best.groups)),
            "left_out": [
                name for group, names in self.groups.items() if group not in best.groups for name in names
            ],
            "cost": best.cost,
            "cost_of_all": whole.cost,
            "average_precision": best.average_precision,
            "average_precision_of_all": whole.average_precision,
        }


@dataclass(frozen=True)
class _Search:
    """What the steps of a search share: the settings, and where sets are evaluated."""

    selection: FeatureSelection
    settings: SelectSettings
    evaluate: Callable[[Sequence[tuple[str, ...]]], Mapping[tuple[str, ...], tuple[float, ...]]]

    def step(self, changed: str, groups: tuple[str, ...], folds: tuple[float, ...]) -> SelectionStep:
        """Return a set with its figures."""
        mean = float(np.mean(folds))
        cost = float(sum(self.selection.costs[one] for one in groups))
        return SelectionStep(
            changed=changed,
            groups=groups,
            average_precision=mean,
            folds=folds,
            cost=cost,
            worth=mean - self.settings.price * cost,
        )

    def first(self) -> SelectionStep:
        """Return the set that the search begins with."""
        every = tuple(self.selection.groups)
        given = every if self.settings.direction == "backward" else self._kept(self.settings.keep)
        return self.step("", given, self.evaluate([given])[given])

    def following(self, before: SelectionStep) -> SelectionStep | None:
        """Return the best set with one group less, or more; None at the end."""
        is_backward = self.settings.direction == "backward"
        candidates = {
            name: self._kept(
                [one for one in before.groups if one != name] if is_backward else [*before.groups, name]
            )
            for name in self.selection.groups
            if (name in before.groups) == is_backward and name not in self.settings.keep
        }
        if not candidates:
            return None
        found = self.evaluate(list(candidates.values()))
        steps = [self.step(name, given, found[given]) for name, given in candidates.items()]
        # Of equal worth, the set of less cost is better.
        return max(steps, key=lambda one: (one.worth, -one.cost))

    def _kept(self, names: Iterable[str]) -> tuple[str, ...]:
        wanted = set(names)
        return tuple(one for one in self.selection.groups if one in wanted)


def select_features(
    data: Path,
    task: ScoreTask,
    settings: FraudSettings,
    path: Path,
    *,
    until_ms: int | None = None,
    advance: Callable[[SelectionStep], None] = lambda _: None,
) -> FeatureSelection:
    """Search for the features that are worth their cost, and write the result. The test window is not read.

    Args:
        data: The Parquet file.
        task: Features to choose from.
        settings: `[fraud]`; the first algorithm is used.
        path: JSON file of the result. If it exists, its evaluated sets are used again.
        until_ms: End of the test window, as in training.
        advance: Called with each step of the search.

    Raises:
        DataError: A group or cost names no feature, the data is too short, or the file is of other data.
    """
    chosen = settings.select
    table = read_table(data, task.features, settings.columns)
    windows = plan_windows(table.time_ms, settings, until_ms)
    folds = earlier_windows(windows, table.time_ms, settings, chosen.folds)
    judged = [Fold(table, one, settings, chosen.rows).judged for one in folds]
    groups = feature_groups([one.name for one in task.features], chosen)
    selection = FeatureSelection(
        input=_input_digest(table, windows, settings),
        data=table.digest,
        features_digest=schema_digest(task),
        direction=chosen.direction,
        cost_unit=chosen.cost_unit,
        price=chosen.price,
        errors=chosen.errors,
        groups=groups,
        costs={name: float(chosen.costs.get(name, chosen.default_cost)) for name in groups},
        evaluated=_earlier(path, table, windows, settings),
    )
    del table
    with fold_pool(data, task, settings, folds, chosen) as pool:
        place = {name: at for at, name in enumerate(groups)}
        evaluated = dict(selection.evaluated)
        single = settings.model_copy(update={"threads": 1})

        def evaluate(sets: Sequence[tuple[str, ...]]) -> Mapping[tuple[str, ...], tuple[float, ...]]:
            keys = {one: ",".join(str(place[name]) for name in one) for one in sets}
            running = {
                one: [
                    pool.submit(fold_value, fold, single, selection.features(one))
                    for fold in range(len(folds))
                ]
                for one, key in keys.items()
                if key not in evaluated
            }
            for one, results in running.items():
                evaluated[keys[one]] = tuple(result.result() for result in results)
            write_selection(selection.model_copy(update={"evaluated": evaluated}), path)
            return {one: evaluated[key] for one, key in keys.items()}

        search = _Search(selection, chosen, evaluate)
        steps = [search.first()]
        advance(steps[0])
        while (following := search.following(steps[-1])) is not None:
            steps.append(following)
            advance(following)
        scores = [
            [
                pool.submit(fold_scores, fold, single, selection.features(one.groups))
                for fold in range(len(folds))
            ]
            for one in steps
        ]
        draws = _precisions(judged, [[one.result() for one in own] for own in scores], settings)
    best = draws[max(range(len(steps)), key=lambda at: steps[at].worth)]
    steps = [
        one.model_copy(update={"error": _finite(own.minus(best).replicated().error)})
        for one, own in zip(steps, draws, strict=True)
    ]
    at = chosen_step(steps, chosen.errors)
    whole = max(range(len(steps)), key=lambda at: len(steps[at].groups))
    difference = measure_of(draws[at].minus(draws[whole]).replicated(), settings.confidence)
    found = selection.model_copy(
        update={
            "steps": tuple(steps),
            "chosen": at,
            "difference": PairedInterval(value=difference.value, low=difference.low, high=difference.high),
            "evaluated": evaluated,
        }
    )
    write_selection(found, path)
    return found


def chosen_step(steps: Sequence[SelectionStep], errors: float) -> int:
    """Return the position of the cheapest set whose worth is so many standard errors below the best one's."""
    best = max(one.worth for one in steps)
    fits = [at for at, one in enumerate(steps) if one.worth >= best - errors * one.error and one.groups]
    return min(fits, key=lambda at: (steps[at].cost, len(steps[at].groups), -steps[at].worth))


def feature_groups(features: Sequence[str], settings: SelectSettings) -> dict[str, tuple[str, ...]]:
    """Return the features of each group, in the order of the features.

    Raises:
        DataError: A group, a cost or a kept group names no feature, or a group has the name of a feature of
            another group.
    """
    of = {name: group for group, names in settings.groups.items() for name in names}
    if unknown := sorted(set(of) - set(features)):
        raise DataError(f'fraud.select.groups: "{unknown[0]}" is no feature; there are {", ".join(features)}')
    groups: dict[str, tuple[str, ...]] = {}
    for name in features:
        group = of.get(name, name)
        if name not in of and group in settings.groups:
            raise DataError(
                f'fraud.select.groups: "{group}" is the name of a feature that is not in it; rename the group'
            )
        groups[group] = (*groups.get(group, ()), name)
    for key, names in (("costs", list(settings.costs)), ("keep", list(settings.keep))):
        if unknown := [name for name in names if name not in groups]:
            raise DataError(f'fraud.select.{key}: "{unknown[0]}" is no group; there are {", ".join(groups)}')
    return groups


def read_selection(path: Path) -> FeatureSelection:
    """Read a result.

    Raises:
        DataError: The file cannot be read, or is no result of this version.
    """
    try:
        return FeatureSelection.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f'selection "{path}": no such file; `scorer learn fraud select` writes one') from None
    except (OSError, ValidationError) as error:
        raise DataError(
            f'selection "{path}": not a result of this version ({type(error).__name__}); choose another file'
        ) from None


def write_selection(selection: FeatureSelection, path: Path) -> None:
    """Write a result in one step."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (selection.model_dump_json(indent=1) + "\n").encode())
    except OSError as error:
        raise DataError(f'selection "{path}": cannot be written ({error.strerror or error})') from error


def selected_task(task: ScoreTask, selection: FeatureSelection) -> ScoreTask:
    """Return the task with the chosen features.

    Raises:
        DataError: The selection was made for other features, or is not finished.
    """
    if schema_digest(task) != selection.features_digest:
        raise DataError(
            f"the selection was made for features with the digest {selection.features_digest[:19]}, those of "
            f'"{task.name}" have {schema_digest(task)[:19]}; select again, or give the task of the selection'
        )
    kept = selection.features(selection.best.groups)
    return ScoreTask(task.name, tuple(one for one in task.features if one.name in kept))


def _earlier(
    path: Path, table: FraudTable, windows: TrainingWindows, settings: FraudSettings
) -> dict[str, tuple[float, ...]]:
    """Return the sets that an earlier run has evaluated."""
    if not path.exists():
        return {}
    earlier = read_selection(path)
    if earlier.input != _input_digest(table, windows, settings):
        raise DataError(f'selection "{path}" is of other data, windows or settings; choose another file')
    return dict(earlier.evaluated)


def _input_digest(table: FraudTable, windows: TrainingWindows, settings: FraudSettings) -> str:
    """Return the digest of what all evaluations have in common."""
    common = settings.model_dump(mode="json", exclude=_NOT_INPUT)
    common["select"] = settings.select.model_dump(mode="json", exclude=_OF_SEARCH)
    what = [table.digest, [one.name for one in table.features], windows.as_dict(), common]
    return SCHEME + hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _precisions(
    judged: Sequence[FraudTable], scores: Sequence[Sequence[Floats]], settings: FraudSettings
) -> list[Draws]:
    """Return the mean average precision over the folds of each set, with the same draws of days for all."""
    blocks = Blocks(np.concatenate([one.time_ms for one in judged]) * 1000, seed=settings.seed)
    ends = np.cumsum([len(one) for one in judged])[:-1]

    def draws(own: Sequence[Floats]) -> Draws:
        ranked = [RankedScores(fold, one.label) for fold, one in zip(own, judged, strict=True)]

        def mean(weights: Floats) -> float:
            parts = zip(ranked, judged, np.split(weights, ends), strict=True)
            return float(
                np.mean([one.average_precision(drawn * table.weight) for one, table, drawn in parts])
            )

        return blocks.draws(mean)

    return [draws(own) for own in scores]


def _finite(error: float) -> float:
    """Return a standard error, 0 if there are too few days for one."""
    return error if math.isfinite(error) else 0.0
