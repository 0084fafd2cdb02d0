"""How often a packed forest splits on each feature, and with which covers (docs/forest-format.md)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scorer.errors import ForestError

_MAGIC = b"SCFOREST"
_HEAD = 104
_COVERS_HEAD = 24
_OUTPUTS, _SLOTS, _TREES, _NODES, _LEAVES = range(5)
_NODE = np.dtype([("key", "<i4"), ("slot", "<u4"), ("left", "<u4")])
_SLOT = np.dtype([("feature", "<u4"), ("rules", "<u4")])
_TABLE = struct.Struct("<IIII")
_PORTION = 1 << 20
_FEATURES = 1 << 20


@dataclass(frozen=True, slots=True)
class ForestShape:
    """The size of a forest, and how often it splits on each feature."""

    trees: int
    nodes: int
    splits: npt.NDArray[np.int64]
    """Number of nodes that split on each feature, ``[features]``."""
    covers: npt.NDArray[np.float64] | None = None
    """Sum of the covers of these nodes, ``[features]``; None if no covers were read."""


def forest_shape(path: str | PathLike[str], covers: str | PathLike[str] | None = None) -> ForestShape:
    """Read the shape of a packed forest without loading it into the engine.

    The file is read in portions, to bound the memory. Its checksum is not verified, so the bundle must have
    been verified before.

    Args:
        path: A file that `Forest.save` wrote, or a forest of a bundle.
        covers: The file with the covers of its nodes, if the bundle has one.

    Raises:
        ForestError: A file cannot be read, or its sections do not fit together.
    """
    weights = None
    try:
        with Path(path).open("rb") as file:
            head = file.read(_HEAD)
            if len(head) < _HEAD or head[:8] != _MAGIC or struct.unpack_from("<I", head, 8)[0] != 1:
                raise ForestError(f'"{Path(path).name}" is no packed forest of version 1')
            features, _, trees, nodes, numeric = struct.unpack_from("<5Q", head, 24)
            lengths = struct.unpack_from("<5Q", head, 64)
            size = Path(path).stat().st_size
            if sum(lengths) + _HEAD + 4 != size or features > _FEATURES or nodes * 12 != lengths[_NODES]:
                raise ForestError(f'"{Path(path).name}" has sections that do not fit its size')
            file.seek(_HEAD + lengths[_OUTPUTS])
            owners = _owners(file.read(lengths[_SLOTS]), numeric)
            file.seek(_HEAD + sum(lengths[:_NODES]))
            counts = np.zeros(features, np.int64)
            sums = np.zeros(features)
            if covers is not None:
                weights = _covers(Path(covers), nodes)
            for start in range(0, nodes, _PORTION):
                slots = np.frombuffer(file.read(min(_PORTION, nodes - start) * 12), _NODE)["slot"]
                used = slots[slots > 0]
                if len(used) and int(used.max()) >= len(owners):
                    raise ForestError(f'"{Path(path).name}" splits on a slot that it does not have')
                counts += np.bincount(owners[used], minlength=features)[:features]
                if weights is not None:
                    own = weights[start : start + len(slots)][slots > 0]
                    sums += np.bincount(owners[used], weights=own, minlength=features)[:features]
    except OSError as error:
        raise ForestError(f'forest "{Path(path).name}" cannot be read: {error.strerror}') from error
    return ForestShape(int(trees), int(nodes), counts, None if weights is None else sums)


def _covers(path: Path, nodes: int) -> npt.NDArray[np.float32]:
    """Return the cover of each node, from a file that is mapped and not read as a whole."""
    if path.stat().st_size != _COVERS_HEAD + 4 * nodes + 4:
        raise ForestError(f'"{path.name}" does not have one cover for each node of the forest')
    return np.memmap(path, "<f4", mode="r", offset=_COVERS_HEAD, shape=(nodes,))


def split_keys(path: str | PathLike[str], features: int) -> list[npt.NDArray[np.int64]]:
    """Read the keys that a packed forest compares each number with, ascending and without repetitions.

    Args:
        path: A forest of a bundle that has been verified.
        features: Number of features to read; later ones of the forest are left out.

    Raises:
        ForestError: The file cannot be read, or its sections do not fit together.
    """
    shape = forest_shape(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ForestError(f'forest "{Path(path).name}" cannot be read: {error.strerror}') from error
    (numeric,) = struct.unpack_from("<Q", data, 56)
    lengths = struct.unpack_from("<5Q", data, 64)
    slots = _HEAD + lengths[_OUTPUTS]
    owners = _owners(data[slots : slots + lengths[_SLOTS]], numeric)
    nodes = np.frombuffer(data, _NODE, count=shape.nodes, offset=_HEAD + sum(lengths[:_NODES]))
    used = nodes[(nodes["slot"] > 0) & (nodes["slot"] <= numeric)]
    own = owners[used["slot"]]
    keys = used["key"].astype(np.int64)
    pairs = np.unique(np.stack([own, keys], axis=1), axis=0)
    ends = np.searchsorted(pairs[:, 0], np.arange(features + 1))
    return [pairs[first:last, 1] for first, last in pairwise(ends)]


def _owners(section: bytes, numeric: int) -> npt.NDArray[np.int64]:
    """Return the feature of each slot. Slot 0 marks leaves."""
    try:
        own = np.frombuffer(section, _SLOT, count=numeric)["feature"].astype(np.int64)
        parts = [np.zeros(1, np.int64), own]
        at = numeric * _SLOT.itemsize
        while at < len(section):
            feature, _, columns, categories = _TABLE.unpack_from(section, at)
            if not columns:
                raise ForestError("a category table of the forest has no columns")
            parts.append(np.full(columns, feature, np.int64))
            words = -(-columns // 64)
            at += _TABLE.size + 4 * categories + 8 * (2 + categories) * words
    except (struct.error, ValueError) as error:
        raise ForestError(f"the slots of the forest cannot be read: {error}") from None
    return np.concatenate(parts)
