"""Raw trees on their way to the Rust compiler, which lowers and validates them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from scorer import bridge

# Node kinds and rules, as rust/bindings/src/forest/raw.rs reads them.
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
    """A tree; node 0 is the root, a leaf's ``left`` is its row of ``leaves``.

    Attributes:
        nodes: Records of `NODE`.
        leaves: Values, ``[leaf]`` or ``[leaf, output]``.
        output: The output that scalar leaves add to; None where leaves are vectors.
        sets: Category sets that nodes refer to.
    """

    nodes: npt.NDArray[Any]
    leaves: npt.NDArray[np.float64]
    output: int | None
    sets: Sequence[npt.NDArray[np.uint32]] = ()


@dataclass(frozen=True)
class RawModel:
    """A model: how its trees sum up to margins, and what follows the margins."""

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
        """Lowers and validates the model.

        Raises:
            ForestError: The model is malformed.
            UnsupportedModelError: It is over a limit.
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
            "members": b"".join(np.ascontiguousarray(members, "<u4").tobytes() for members in sets),
        }
        return bridge.Forest.from_trees(head, trees)
