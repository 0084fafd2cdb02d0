"""Leaving out the records of entities that were erased before they were shipped."""

from __future__ import annotations

from pathlib import Path

from scorer.log.erasure import FILE, Erased, erased
from scorer.log.reading import LogReader
from scorer.log.scanning import entry_of


class Erasures:
    """The erased entities of a log, read again whenever the log's file of erasures changes.

    Outcomes do not hold the entity, so they are recognised by their decision. After each change the log is
    therefore read from its start up to the batch. A log without erasures is not read and not decoded.

    Args:
        directory: The log's directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: tuple[int, int, int] | None = None
        self._erased = Erased("", frozenset())

    def without_erased(self, sequences: list[int], payloads: list[bytes]) -> tuple[list[int], list[bytes]]:
        """Return the records that belong to no erased entity.

        Args:
            sequences: Sequences of consecutive records, at least one.
            payloads: The encoded records.

        Raises:
            LogError: The erasures or the log cannot be read.
        """
        self._refresh(sequences[0])
        if not self._erased:
            return sequences, payloads
        kept = [
            (sequence, payload)
            for sequence, payload in zip(sequences, payloads, strict=True)
            if not self._covers(sequence, payload)
        ]
        return [sequence for sequence, _ in kept], [payload for _, payload in kept]

    def _refresh(self, before: int) -> None:
        try:
            found = (self._directory / FILE).stat()
        except FileNotFoundError:
            return
        seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        if seen == self._seen:
            return
        self._erased = erased(self._directory)
        for sequence, payload in LogReader(self._directory).payloads():
            if sequence >= before:
                break
            self._covers(sequence, payload)
        self._seen = seen

    def _covers(self, sequence: int, payload: bytes) -> bool:
        entry = entry_of(sequence, payload)
        return self._erased.covers(entry.kind, entry.record)
