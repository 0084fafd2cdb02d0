"""A small decision tree that imitates a bundle, fitted by least squares, with its fidelity on other rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from scorer.bundle.models import Feature
from scorer.explain.document import SurrogateNode, SurrogateTree
from scorer.explain.quantity import ExplainedQuantity
from scorer.stats.arrays import Bools, Floats, Ints, Rows32

_THRESHOLDS: Final = 32
"""Largest number of thresholds, or of levels, that are tried for a feature at a node."""
_LEAST: Final = 5
"""Fewest rows of a leaf."""
_TESTABLE: Final = 30
"""Fewest rows of a sample of which a third is kept for the fidelity."""

Labels = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class _Split:
    column: int
    value: float
    missing_left: bool
    gain: float


def surrogate(
    quantity: ExplainedQuantity, rows: Rows32, features: Sequence[Feature], depth: int, seed: int
) -> SurrogateTree:
    """Fit a tree to the explained quantity on two thirds of the rows and test it on the others.

    Args:
        quantity: The explained quantity.
        rows: Rows ``[n, features]``, at least one.
        features: The features of the rows.
        depth: Largest depth of the tree.
        seed: Seed of the division of the rows.
    """
    values = quantity.values(rows)
    labels = quantity.decisions(rows)
    order = np.random.default_rng(seed).permutation(len(rows))
    cut = len(rows) - len(rows) // 3 if len(rows) >= _TESTABLE else len(rows)
    fitted, tested = np.sort(order[:cut]), np.sort(order[cut:])
    names = tuple(quantity.bundle.labels)
    builder = _Builder(features, names, None if labels is None else labels[fitted])
    builder.grow(rows[fitted], values[fitted], depth)
    leaves = leaf_of(builder.nodes, features, rows[tested])
    truth = values[tested]
    predicted = np.array([builder.nodes[leaf].value for leaf in leaves])
    agreement = None
    if labels is not None and len(tested):
        given = [builder.nodes[leaf].label for leaf in leaves]
        agreement = float(
            np.mean([names[band] == one for band, one in zip(labels[tested], given, strict=True)])
        )
    variance = float(np.var(truth)) if len(tested) else 0.0
    return SurrogateTree(
        depth=depth,
        nodes=builder.nodes,
        fitted=len(fitted),
        tested=len(tested),
        r_squared=1 - float(np.mean((truth - predicted) ** 2)) / variance if variance > 0 else None,
        error=float(np.mean(np.abs(truth - predicted))) if len(tested) else None,
        agreement=agreement,
    )


def leaf_of(nodes: Sequence[SurrogateNode], features: Sequence[Feature], rows: Rows32) -> Ints:
    """Return the index of the leaf of each row, ``[n]``."""
    place = {feature.name: (at, feature) for at, feature in enumerate(features)}
    found = np.zeros(len(rows), np.int64)
    # A child has a larger index than its parent, so one pass in order reaches the leaves.
    for at, node in enumerate(nodes):
        if node.feature is None or node.left is None or node.right is None:
            continue
        here = np.flatnonzero(found == at)
        column, feature = place[node.feature]
        value = (
            float(feature.categories.index(node.level)) if node.level is not None else node.threshold or 0.0
        )
        left = _goes_left(rows[here, column], feature, value, node.missing_left)
        found[here] = np.where(left, node.left, node.right)
    return found


def _goes_left(own: Rows32, feature: Feature, value: float, missing_left: bool) -> Bools:
    left: Bools = own == np.float32(value)
    if feature.type != "category":
        left = np.where(np.isnan(own), missing_left, own < np.float32(value))
    return left


class _Builder:
    def __init__(self, features: Sequence[Feature], names: Sequence[str], labels: Labels | None) -> None:
        self._features, self._names, self._labels = features, names, labels
        self.nodes: list[SurrogateNode] = []

    def grow(self, rows: Rows32, values: Floats, depth: int) -> None:
        """Grow the tree breadth first."""
        waiting = [(np.arange(len(rows)), depth)]
        self.nodes.append(self._node(waiting[0][0], values))
        at = 0
        while at < len(waiting):
            where, left_depth = waiting[at]
            split = self._best(rows[where], values[where]) if left_depth else None
            if split is not None:
                feature = self._features[split.column]
                left = _goes_left(rows[where, split.column], feature, split.value, split.missing_left)
                first = len(self.nodes)
                for part in (where[left], where[~left]):
                    self.nodes.append(self._node(part, values))
                    waiting.append((part, left_depth - 1))
                is_level = feature.type == "category"
                self.nodes[at] = self.nodes[at].model_copy(
                    update={
                        "feature": feature.name,
                        "threshold": None if is_level else split.value,
                        "level": feature.categories[int(split.value)] if is_level else None,
                        "missing_left": split.missing_left,
                        "left": first,
                        "right": first + 1,
                    }
                )
            at += 1

    def _node(self, where: Ints, values: Floats) -> SurrogateNode:
        label = None
        if self._labels is not None:
            label = self._names[int(np.bincount(self._labels[where], minlength=len(self._names)).argmax())]
        return SurrogateNode(rows=len(where), value=float(values[where].mean()), label=label)

    def _best(self, rows: Rows32, values: Floats) -> _Split | None:
        best: _Split | None = None
        centred = values - values.mean()
        least = 1e-12 + 1e-9 * float(centred @ centred)
        for column, feature in enumerate(self._features):
            found = _split_of(rows[:, column], centred, feature, column)
            if found is not None and found.gain > (best.gain if best else least):
                best = found
        return best


def _split_of(own: Rows32, centred: Floats, feature: Feature, column: int) -> _Split | None:
    """Return the split of one feature with the largest decrease of the squared error."""
    missing = np.isnan(own)
    choices: tuple[bool, ...] = (False,)
    if feature.type == "category":
        levels, counts = np.unique(own[~missing], return_counts=True)
        values = np.sort(levels[np.argsort(-counts, kind="stable")[:_THRESHOLDS]])
        sides = own[:, None] == values[None, :]
    else:
        known = np.unique(own[~missing])
        places = np.unique(
            np.linspace(1, len(known) - 1, min(_THRESHOLDS, max(len(known) - 1, 0))).astype(int)
        )
        values = known[places] if len(known) > 1 else known
        sides = own[:, None] < values[None, :]
        choices = (False, True) if missing.any() else (False,)
    best: _Split | None = None
    for missing_left in choices:
        left = sides | missing[:, None] if missing_left else sides
        counts = left.sum(axis=0)
        sums = centred @ left
        rest = len(own) - counts
        allowed = (counts >= _LEAST) & (rest >= _LEAST)
        if not allowed.any():
            continue
        gains = np.where(allowed, sums**2 / np.maximum(counts, 1) + sums**2 / np.maximum(rest, 1), -1.0)
        at = int(gains.argmax())
        if best is None or gains[at] > best.gain:
            best = _Split(column, float(values[at]), missing_left, float(gains[at]))
    return best
