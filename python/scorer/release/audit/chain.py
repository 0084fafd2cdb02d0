"""The hash chain of the audit log. Each entry's hash covers its content and the previous hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from scorer.release.store.tables import GENESIS
from scorer.release.store.values import dumps

FIELDS = ("sequence", "at", "actor", "via", "action", "object", "project", "details", "previous")
"""Hashed fields: all except the hash. `at` is in microseconds, `details` is the stored text."""


def entry_hash(fields: dict[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON of `FIELDS`, with a prefix for domain separation."""
    content = dumps({name: fields[name] for name in FIELDS})
    return hashlib.sha256(b"scorer-audit-1\n" + content.encode()).hexdigest()


class Walk:
    """Verifies entries in the order of their sequence and collects the problems.

    Args:
        expect: Sequence and hash of an earlier head; None: not compared.
    """

    def __init__(self, expect: tuple[int, str] | None = None) -> None:
        self.sequence = 0
        self.hash = GENESIS
        self._expect = expect
        self._expected_seen = expect is None
        self._problems: list[str] = []

    def feed(self, rows: Iterable[dict[str, Any]]) -> None:
        """Verify the next entries of the audit log."""
        for row in rows:
            self._problems.extend(self._check(row))

    def problems(self, head: tuple[int, str] | None) -> tuple[str, ...]:
        """Return all problems; to be called after the last entry.

        Args:
            head: Sequence and hash of the stored head; None: it is missing.
        """
        problems = list(self._problems)
        if head is None:
            problems.append("the head is missing: the length of the log is unknown")
        elif head[0] > self.sequence:
            problems.append(
                f"{_entries(self.sequence + 1, head[0])} at the end missing: the head is entry {head[0]}"
            )
        elif head[0] < self.sequence:
            problems.append(
                f"{_entries(head[0] + 1, self.sequence)} after the head, which is entry {head[0]}"
            )
        elif head[1] != self.hash:
            problems.append(f"the head's hash {head[1][:12]}... is not that of entry {self.sequence}")
        if self._expect is not None and not self._expected_seen:
            problems.append(f"entry {self._expect[0]}, whose hash was kept elsewhere, is missing")
        return tuple(problems)

    def _check(self, row: dict[str, Any]) -> Iterator[str]:
        sequence = row["sequence"]
        if not isinstance(sequence, int) or sequence <= self.sequence:
            yield f"entry {sequence!r}: its sequence does not follow {self.sequence}"
            return
        if sequence > self.sequence + 1:
            yield f"{_entries(self.sequence + 1, sequence - 1)} missing before entry {sequence}"
        if row["previous"] != self.hash:
            yield f"entry {sequence}: its previous hash is {str(row['previous'])[:12]}..., " + (
                f"but entry {self.sequence} has {self.hash[:12]}..."
                if self.sequence
                else "but it is the first entry"
            )
        try:
            right = entry_hash(row)
        except (TypeError, ValueError):
            right = "none"  # a value that the platform never writes, for example a blob
        if row["hash"] != right:
            yield f"entry {sequence}: its content does not match its hash"
        if self._expect is not None and sequence == self._expect[0]:
            self._expected_seen = True
            if row["hash"] != self._expect[1]:
                yield (
                    f"entry {sequence}: its hash {str(row['hash'])[:12]}... is not "
                    f"{self._expect[1][:12]}..., which was kept elsewhere"
                )
        self.sequence, self.hash = sequence, row["hash"]


def _entries(first: int, last: int) -> str:
    return f"entry {first} is" if first == last else f"entries {first} to {last} are"
