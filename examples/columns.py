"""The inputs of the examples' models: the schema of a request, and its rows by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from scorer.bundle import Feature


def column(
    name: str,
    type: Literal["number", "category", "flag"] = "number",  # noqa: A002 - as in the schema
    categories: Sequence[str] = (),
    *,
    minimum: float | None = None,
    maximum: float | None = None,
) -> Feature:
    """One input, which each request must carry."""
    return Feature(
        name=name, type=type, categories=list(categories), missing="refuse", minimum=minimum, maximum=maximum
    )


def named_row(columns: Sequence[Feature], row: npt.NDArray[np.float32]) -> dict[str, float | str | bool]:
    """A dense row as features by name, as a client sends them."""
    return {one.name: _named(one, float(value)) for one, value in zip(columns, row, strict=True)}


def _named(one: Feature, value: float) -> float | str | bool:
    if one.type == "category":
        return one.categories[int(value)]
    return bool(value) if one.type == "flag" else value
