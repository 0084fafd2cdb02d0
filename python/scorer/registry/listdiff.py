"""The difference of two contents of a list, in memory of 8 bytes for each element."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from scorer.errors import BundleError


@dataclass(frozen=True, slots=True)
class ListDifference:
    """What a content has and another one lacks."""

    added: int
    """Number of different elements that only the second content has."""
    removed: int
    """Number of different elements that only the first content has."""
    added_examples: tuple[str, ...]
    removed_examples: tuple[str, ...]


def difference(
    before: Path, after: Path, kind: Literal["string", "int"], examples: int = 5
) -> ListDifference:
    """Compare two files of elements, one element per line.

    Elements are compared by Python's 64-bit hash of strings, so that two different elements count as equal
    with probability 2^-64.

    Args:
        before: The first file.
        after: The second file.
        kind: The type of the elements.
        examples: Greatest number of examples of each kind.

    Raises:
        BundleError: A file cannot be read, or a line is not an element.
    """
    import numpy as np

    files = before, after
    old, new = (np.unique(np.fromiter(map(hash, _elements(file, kind)), np.int64)) for file in files)
    added, removed = (np.setdiff1d(*pair, assume_unique=True) for pair in ((new, old), (old, new)))

    def shown(file: Path, hashes: np.ndarray) -> tuple[str, ...]:
        wanted = set(hashes[: examples * 1000].tolist())
        found = (one for one in _elements(file, kind) if hash(one) in wanted) if wanted else ()
        return tuple(islice(dict.fromkeys(islice(found, examples * 2)), examples))

    return ListDifference(len(added), len(removed), shown(after, added), shown(before, removed))


def _elements(file: Path, kind: Literal["string", "int"]) -> Iterator[str]:
    try:
        with file.open("rb") as reader:
            for number, line in enumerate(reader, 1):
                element = line.removesuffix(b"\n").removesuffix(b"\r")
                if not element:
                    continue
                try:
                    text = element.decode()
                    yield str(int(text)) if kind == "int" else text
                except ValueError:
                    raise BundleError(f'"{file}": line {number} is not an element of type {kind}') from None
    except OSError as error:
        raise BundleError(f'"{file}" cannot be read: {error.strerror}') from None
