"""The newest decisions of a log, by checkpoint, in memory."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from threading import Lock

from scorer.log.erasure import erased
from scorer.log.reading import LogReader
from scorer.log.scanning import WITHDRAWN, entry_of
from scorer.log.segments import segment_files
from scorer.v1.log_pb2 import DecisionRecord

KEPT = 500
"""Number of decisions that are kept per checkpoint."""
_LOOKED_AT = 20_000
"""Most records that one update reads; if the log got more since the last update, the oldest are skipped."""


class Tail:
    """The newest decisions of one log.

    The first call of `newest` reads the two newest segments, later calls read the records that came since.

    Args:
        log: The log's directory.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._next: int | None = None
        self._identity = b""
        self._newest: dict[str, deque[tuple[int, DecisionRecord]]] = {}
        self._lock = Lock()

    def newest(self, checkpoint: str, limit: int) -> list[DecisionRecord]:
        """Return the newest decisions of a checkpoint, newest first, without those of erased entities.

        Args:
            checkpoint: Name of the checkpoint.
            limit: Largest number of decisions, at most `KEPT`.

        Raises:
            LogError: The directory is not a log, or cannot be read.
        """
        with self._lock:
            self._look()
            # Read for each call: an entity may be erased after its decisions were kept.
            hidden = erased(self._log)
            kept = (record for _, record in reversed(self._newest.get(checkpoint, ())))
            return [record for record in kept if not hidden.names(record.entity)][:limit]

    def _look(self) -> None:
        segments = segment_files(self._log)
        if self._next is None or (segments and segments[0].log != self._identity):
            self._newest.clear()
            self._next = segments[:2][-1].first if segments else 0
            self._identity = segments[0].log if segments else b""
        payloads = deque(LogReader(self._log, self._next).payloads(), maxlen=_LOOKED_AT)
        for sequence, payload in payloads:
            _, kind, record = entry_of(sequence, payload)
            if kind == "decision":
                self._newest.setdefault(record.checkpoint, deque(maxlen=KEPT)).append((sequence, record))
            elif kind == WITHDRAWN and record.checkpoint in self._newest:
                kept = (one for one in self._newest[record.checkpoint] if one[0] != record.sequence)
                self._newest[record.checkpoint] = deque(kept, maxlen=KEPT)
        if payloads:
            self._next = payloads[-1][0] + 1
