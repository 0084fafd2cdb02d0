"""What is wrong with the rows of an import, by rule, and what is done about each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

ImportEffect: TypeAlias = Literal["rejected", "skipped", "noted"]
"""A rejected row is an error of the file, a skipped one needs no report, and a noted one is reported."""

_EXAMPLES: Final = 5

RULES: Final[dict[str, tuple[ImportEffect, str]]] = {
    "unreadable row": ("rejected", "the row does not have the form of its file"),
    "no decision id": ("rejected", "an outcome belongs to a decision"),
    "bad decision id": ("rejected", "servers accept ids of 1 to 80 printable ASCII characters"),
    "wrong kind": ("rejected", "the kind is empty, too long, or none of --kinds"),
    "not a number": ("rejected", "the value is a finite number"),
    "bad revision": ("rejected", "a revision is an integer from 0 on"),
    "unreadable time": ("rejected", "occurred_at is an ISO 8601 time or Unix time in milliseconds"),
    "future time": ("rejected", "an outcome that has not occurred yet is a wrong time or a wrong time zone"),
    "bad token": ("rejected", "a decision token is Base64"),
    "contradiction in the file": (
        "rejected",
        "two rows give one revision of one outcome different values; all of them are rejected",
    ),
    "unknown decision": ("rejected", "no log of --log has a decision with this id at the checkpoint"),
    "before its decision": ("rejected", "the outcome occurred more than a minute before its decision"),
    "contradicts the log": (
        "rejected",
        "the log has another value of this revision; give a higher revision, or use --revise",
    ),
    "duplicate in the file": ("skipped", "an equal row comes earlier in the file"),
    "already recorded": ("skipped", "the log has the same value of this revision"),
    "without a token": (
        "noted",
        "a server proves the outcome only while it has the decision in memory; by default outcomes without "
        "proof are not used",
    ),
    "corrects the log": ("noted", "--revise reports the value as the revision after the newest one"),
    "older than the log": ("noted", "the log has a higher revision, which continues to count"),
}


@dataclass(frozen=True)
class ImportFinding:
    """One rule that rows of the file break.

    Attributes:
        name: A key of `RULES`.
        effect: What happens with the rows.
        count: Number of rows.
        rule: The rule.
        examples: The first few rows, by number, with details.
    """

    name: str
    effect: ImportEffect
    count: int
    rule: str
    examples: tuple[str, ...]


class ImportFindings:
    """Count the rows that break rules, with examples."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}

    def add(self, name: str, row: int, detail: str = "") -> None:
        """Count a row; `row` is its number in the file, from 1."""
        self._count[name] = self._count.get(name, 0) + 1
        examples = self._examples.setdefault(name, [])
        if len(examples) < _EXAMPLES:
            examples.append(f"row {row}: {detail}" if detail else f"row {row}")

    def rows(self) -> tuple[ImportFinding, ...]:
        """Return all findings in the order of the rules."""
        return tuple(
            ImportFinding(name, effect, self._count[name], rule, tuple(self._examples[name]))
            for name, (effect, rule) in RULES.items()
            if name in self._count
        )
