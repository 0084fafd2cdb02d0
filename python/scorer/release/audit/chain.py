"""What makes the log a chain: each entry's hash covers its content and the hash before it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from scorer.release.store.tables import GENESIS
from scorer.release.store.values import dumps

FIELDS = ("sequence", "at", "actor", "via", "action", "object", "project", "details", "previous")
"""What is hashed: everything but the hash. `at` in microseconds, `details` as the text that is stored."""


def entry_hash(fields: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON of `FIELDS`, named by its purpose so that nothing else hashes alike."""
    content = dumps({name: fields[name] for name in FIELDS})
    return hashlib.sha256(b"scorer-audit-1\n" + content.encode()).hexdigest()


class Walk:
    """Checks entries in the order of their sequence; `problems` after the last tells everything found."""

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
        """After the last entry: everything that is wrong, given what the head row says."""
        found = list(self._problems)
        if head is None:
            found.append("the head is missing: nothing says how long the log was")
        elif head[0] > self.sequence:
            found.append(
                f"{_entries(self.sequence + 1, head[0])} at the end missing: the head says {head[0]}"
            )
        elif head[0] < self.sequence:
            found.append(
                f"{_entries(head[0] + 1, self.sequence)} not known to the head, which says {head[0]}"
            )
        elif head[1] != self.hash:
            found.append(f"the head's hash {head[1][:12]}... is not that of entry {self.sequence}")
        if self._expect is not None and not self._expected_seen:
            found.append(f"entry {self._expect[0]}, whose hash was written down elsewhere, is missing")
        return tuple(found)

    def _check(self, row: dict[str, Any]) -> Iterator[str]:
        sequence = row["sequence"]
        if not isinstance(sequence, int) or sequence <= self.sequence:
            yield f"entry {sequence!r}: this is no sequence after {self.sequence}"
            return
        if sequence > self.sequence + 1:
            yield f"{_entries(self.sequence + 1, sequence - 1)} missing before entry {sequence}"
        if row["previous"] != self.hash:
            yield f"entry {sequence}: it names {str(row['previous'])[:12]}... as the hash before it, " + (
                f"entry {self.sequence} has {self.hash[:12]}..." if self.sequence else "and is the first"
            )
        try:
            right = entry_hash(row)
        except (TypeError, ValueError):
            right = "none"  # a stored value that we never write, a blob for instance
        if row["hash"] != right:
            yield f"entry {sequence}: its content is not what was hashed"
        if self._expect is not None and sequence == self._expect[0]:
            self._expected_seen = True
            if row["hash"] != self._expect[1]:
                yield (
                    f"entry {sequence}: its hash {str(row['hash'])[:12]}... is not "
                    f"{self._expect[1][:12]}..., which was written down elsewhere"
                )
        self.sequence, self.hash = sequence, row["hash"]


def _entries(first: int, last: int) -> str:
    return f"entry {first} is" if first == last else f"entries {first} to {last} are"
