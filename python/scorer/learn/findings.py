"""A result of a check of data, in lineages and in records of data sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict


@dataclass(frozen=True)
class DataFinding:
    """A result of a check.

    Attributes:
        name: Name of the rule.
        effect: Whether the data is rejected, rows are left out, or the finding is only reported.
        count: Number of rows, or 1.
        text: The rule with its figures, and the remedy.
    """

    # Records of data sets are read by pydantic, which rejects keys of other versions.
    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    effect: Literal["rejected", "excluded", "reported"]
    count: int
    text: str
