"""Whether observations speak of decisions as they were: each carries the answer that it observed."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from os import PathLike
from typing import TYPE_CHECKING

from scorer.log.reading import Advance
from scorer.log.scanning import scan

if TYPE_CHECKING:
    from scorer.v1.log_pb2 import DecisionRecord, ObservationRecord

_NUMBERS = struct.Struct("<dddd II")


class Links:
    """Takes in the observations of a log, then looks their decisions up in another pass.

    About half a kilobyte is kept for each answer that was observed, however many lanes did.
    """

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], dict[bytes, int]] = {}
        self.orphans = 0
        """Observed decisions that are not in the log: lost, dropped under load, or another server's."""

    def add(self, sequence: int, record: ObservationRecord) -> None:
        """Add the next observation of the log."""
        decision = record.decision
        answers = self._answers.setdefault((decision.checkpoint, decision.decision_id), {})
        answers.setdefault(_observed(record), sequence)

    def settle(
        self, directory: str | PathLike[str], advance: Advance | None = None
    ) -> Iterator[tuple[int, str]]:
        """Sequence and decision id of observations whose answer is not the one that was given."""
        if not self._answers:
            return
        found: set[tuple[str, str]] = set()
        for _, _, decision in scan(directory, kinds={"decision"}, advance=advance):
            key = (decision.checkpoint, decision.decision_id)
            answers = self._answers.get(key)
            if answers is not None:
                found.add(key)
                # An id may have been decided about twice; each observation is of one of them.
                answers.pop(_given(decision), None)
        for key, answers in self._answers.items():
            if key not in found:
                self.orphans += 1
                continue
            for sequence in answers.values():
                yield sequence, key[1]


def _observed(record: ObservationRecord) -> bytes:
    numbers = _NUMBERS.pack(
        record.live_margin,
        record.live_score,
        record.live_expected_reward,
        record.live_propensity,
        record.live_data_load_us,
        record.live_exec_us,
    )
    texts = (record.live_lane, record.live_decision, record.live_action, record.live_fallback_reason)
    return _fingerprint(numbers, record.live_bundle, texts)


def _given(record: DecisionRecord) -> bytes:
    numbers = _NUMBERS.pack(
        record.margin,
        record.score,
        record.expected_reward,
        record.propensity,
        record.data_load_us,
        record.exec_us,
    )
    return _fingerprint(
        numbers, record.bundle, (record.lane, record.decision, record.action, record.fallback_reason)
    )


def _fingerprint(numbers: bytes, bundle: bytes, texts: tuple[str, ...]) -> bytes:
    whole = b"\0".join([numbers, bundle, *(text.encode() for text in texts)])
    return hashlib.blake2b(whole, digest_size=12).digest()
