"""Rules that data can break, and what is done about rows and units that break them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from scorer.learn.errors import DataError

FindingEffect: TypeAlias = Literal["rejected", "left out", "noted"]
"""The data is rejected, the units are neither adopters nor controls, or the finding is reported only."""

RULES: Final[dict[str, tuple[FindingEffect, str]]] = {
    "no unit": ("rejected", "each row names its unit; correct or remove the rows"),
    "unreadable period": ("rejected", 'a period is a date, text as "2026-01", or a number as 202601'),
    "missing value": ("rejected", "a value is a finite number; write 0 for a month without value"),
    "missing feature": ("rejected", "a matching feature is a finite number in every row"),
    "value out of range": (
        "rejected",
        "values and features are between -1e30 and 1e30; correct the rows or use a larger unit",
    ),
    "negative value": ("rejected", '`negative = "reject"` is set; correct the rows or accept them'),
    "mixed currencies": ("rejected", "values are added, so all have one currency; convert them first"),
    "duplicate rows": ("rejected", "a unit has one row for each month; remove the repeated rows"),
    "overlapping periods": ("rejected", "periods are months; add up the rows of a unit that share a month"),
    "absent months rejected": ("rejected", '`absent = "reject"` is set; add the rows or count them as 0'),
    "changing group": ("rejected", "a column of `exact` has one value for each unit"),
    "in both groups": (
        "rejected",
        "a unit is an adopter with one date, or never adopted; remove the empty or contradicting dates",
    ),
    "unreadable adoption": ("rejected", "an adoption has a unit and a date"),
    "no adopters": ("rejected", "no unit adopted the product; check `product` and the ids of units"),
    "no controls": ("rejected", "every unit adopted the product; add units that never did"),
    "no complete window": (
        "rejected",
        "no adopter has `pre_months` before and the shortest of `horizons` after adoption",
    ),
    "adopted before the data": ("left out", "an adoption before the first month has no period before it"),
    "too few months before": ("left out", "fewer than `pre_months` months precede the adoption"),
    "too few months after": ("left out", "the data end before the shortest of `horizons`"),
    "adopted after the data": ("left out", "an adoption after the last month has no period after it"),
    "adopters without values": ("left out", "an adopter has no row in the data"),
    "absent months": ("noted", "a month without a row counts as 0"),
    "negative values": ("noted", "values below 0, such as losses, are used as they are"),
    "repeated adoptions": ("noted", "the first adoption of a unit counts"),
    "controls drawn": ("noted", "`most_controls` units that never adopted were drawn by a hash"),
}


@dataclass(frozen=True)
class CausalFinding:
    """One rule that the data break.

    Attributes:
        name: A key of `RULES`.
        effect: What is done about it.
        count: Number of rows, or of units.
        rule: The rule with its remedy.
        examples: The first few, as text.
    """

    name: str
    effect: FindingEffect
    count: int
    rule: str
    examples: tuple[str, ...] = ()


class CausalFindings:
    """Findings in the order in which the data are checked."""

    def __init__(self) -> None:
        self._found: dict[str, CausalFinding] = {}

    def add(self, name: str, count: int, examples: Sequence[str] = ()) -> None:
        """Add a finding unless its count is 0."""
        if count:
            effect, rule = RULES[name]
            self._found[name] = CausalFinding(name, effect, count, rule, tuple(examples[:5]))

    def rows(self) -> tuple[CausalFinding, ...]:
        """Return all findings in the order of the rules."""
        return tuple(self._found[name] for name in RULES if name in self._found)

    def require(self) -> None:
        """Raise an error if the data are rejected.

        Raises:
            DataError: With one line for each rule that rejects them.
        """
        lines = []
        for one in self.rows():
            if one.effect == "rejected":
                shown = f" (such as {', '.join(one.examples)})" if one.examples else ""
                lines.append(f"{one.name}: {one.count:,}{shown}; {one.rule}")
        if lines:
            raise DataError("\n".join(lines))
