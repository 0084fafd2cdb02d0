"""The newest decisions of a log, by checkpoint, in memory."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from threading import Lock

from scorer.log.reading import LogReader
from scorer.log.scanning import WITHDRAWN, entry_of
from scorer.log.segments import segment_files
from scorer.v1.log_pb2 import DecisionRecord

KEPT = 500
"""Decisions per checkpoint."""
_LOOKED_AT = 20_000
"""Of what a log got since the last look, the newest so many records."""


class Tail:
    """Of one log. The first look reads its two newest segments, later ones what came since."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._next: int | None = None
        self._identity = b""
        self._newest: dict[str, deque[tuple[int, DecisionRecord]]] = {}
        self._lock = Lock()

    def newest(self, checkpoint: str, limit: int) -> list[DecisionRecord]:
        """Up to `limit` (at most `KEPT`) decisions, newest first.

        Raises:
            LogError: It is no log, or cannot be read.
        """
        with self._lock:
            self._look()
            kept = self._newest.get(checkpoint, ())
            return [record for _, record in reversed(kept)][:limit]

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
