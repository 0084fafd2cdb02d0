"""A figure with its numbers, as results have them for the platform, pages and notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a result or report, for display and download.

    Attributes:
        name: Unique on a page: `execution`, `data-load`, `latency`, `scores`, `flips`, ...
        title: Heading.
        words: Its interpretation, in one or two sentences.
        plotly: `{"data": [...], "layout": {...}}`.
        columns: Columns of its numbers.
        rows: Its numbers, for CSV, JSON and screen readers.
    """

    name: str
    title: str
    words: str
    plotly: Mapping[str, Any]
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
