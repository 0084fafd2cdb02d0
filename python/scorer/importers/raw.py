"""Raw trees, the common form in which importers pass models to the Rust compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from scorer import bridge

# Node kinds and rules; the numbers must equal those in rust/bindings/src/forest/raw.rs.
LEAF: Final = 0
LESS: Final = 1
LESS_EQUAL: Final = 2
MEMBERS_LEFT: Final = 3
MEMBERS_RIGHT: Final = 4

NAN_LEFT: Final = 0
NAN_RIGHT: Final = 1
NAN_ZERO: Final = 2

ZERO_KEEP: Final = 0
ZERO_FLUSH: Final = 1
ZERO_MISSING: Final = 2

CATEGORY_NON_NEGATIVE: Final = 0
CATEGORY_TRUNCATED: Final = 1
CATEGORY_EXACT: Final = 2

NODE: Final = np.dtype(
    [
        ("feature", "<u4"),
        ("kind", "u1"),
        ("nan", "u1"),
        ("zero", "u1"),
        ("rule", "u1"),
        ("left", "<u4"),
        ("right", "<u4"),
        ("set", "<u4"),
        ("threshold", "<f8"),
    ]
)
_ALL_OUTPUTS: Final = 2**32 - 1


@dataclass(frozen=True)
class RawTree:
    """A tree. Node 0 is the root, and the field ``left`` of a leaf is its row in ``leaves``.

    Attributes:
        nodes: Records of type `NODE`, ``[nodes]``.
        leaves: Values of the leaves, ``[leaves]`` or ``[leaves, outputs]``.
        output: The output that scalar leaves add to; None if leaves are vectors.
        sets: Sets of categories that the field ``set`` of nodes refers to.
        covers: Weight of the training rows that reached each node, ``[nodes]``; None if it is not known.
    """

    nodes: npt.NDArray[Any]
    leaves: npt.NDArray[np.float64]
    output: int | None
    sets: Sequence[npt.NDArray[np.uint32]] = ()
    covers: npt.NDArray[np.float64] | None = None


@dataclass(frozen=True)
class RawModel:
    """A model: its trees, and how margins and predictions are computed from them.

    Attributes:
        num_features: Number of columns.
        num_outputs: Number of outputs.
        trees: The trees, in the order in which their leaves are added.
        base: Initial value of each output, ``[outputs]``.
        float32: Whether leaves are added in float32 instead of float64.
        base_last: Whether the base is added after the trees and not before.
        divisor: Number that each output's sum is divided by, ``[outputs]``; empty for none.
        link: Name of the link function from margins to predictions.
        link_parameter: Parameter of the link function.
    """

    num_features: int
    num_outputs: int
    trees: Sequence[RawTree]
    base: Sequence[float]
    float32: bool = False
    base_last: bool = False
    divisor: Sequence[float] = ()
    link: str = "identity"
    link_parameter: float = 0.0

    def compile(self) -> bridge.Forest:
        """Compile and validate the model.

        Raises:
            ForestError: The model is malformed.
            UnsupportedModelError: The model exceeds a limit of the engine.
        """
        head = {
            "num_features": self.num_features,
            "num_outputs": self.num_outputs,
            "float32": self.float32,
            "base": [float(value) for value in self.base],
            "base_last": self.base_last,
            "divisor": [float(value) for value in self.divisor],
            "link": self.link,
            "link_parameter": self.link_parameter,
        }
        spans = [
            (
                _ALL_OUTPUTS if tree.output is None else tree.output,
                len(tree.nodes),
                tree.leaves.size,
                len(tree.sets),
            )
            for tree in self.trees
        ]
        sets = [members for tree in self.trees for members in tree.sets]
        trees = {
            "trees": np.array(spans, "<u4").tobytes(),
            "nodes": b"".join(tree.nodes.astype(NODE, copy=False).tobytes() for tree in self.trees),
            "leaves": b"".join(np.ascontiguousarray(tree.leaves, "<f8").tobytes() for tree in self.trees),
            "set_sizes": np.array([len(members) for members in sets], "<u4").tobytes(),
            "covers": self._covers(),
            "members": b"".join(np.ascontiguousarray(members, "<u4").tobytes() for members in sets),
        }
        return bridge.Forest.from_trees(head, trees)

    def _covers(self) -> bytes:
        """Return the covers of all nodes, or nothing if those of a tree are not known."""
        covers = [tree.covers for tree in self.trees if tree.covers is not None]
        if len(covers) < len(self.trees):
            return b""
        return b"".join(np.ascontiguousarray(own, "<f8").tobytes() for own in covers)
