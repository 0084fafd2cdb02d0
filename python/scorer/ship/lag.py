"""How far a sink is behind its log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scorer.log.reading import LogReader
from scorer.ship.decoding import kind_of, record_class

_END = (1 << 64) - 1
_LOOKED_AT = 64
"""Number of records among which one with a time is looked for; most have one."""


@dataclass(frozen=True, slots=True)
class Lag:
    """What a sink has not got yet."""

    records: int
    """Number of records."""
    seconds: float
    """Age of the oldest of them; 0 if there is none."""


def lag(directory: Path, sequence: int) -> Lag:
    """Measure how much of a log a sink does not hold.

    It reads the segment of the position, and the newest one.

    Args:
        directory: The log's directory.
        sequence: Sequence after the last record that the sink holds; 0 if it holds none.

    Raises:
        LogError: The directory is not a log, or cannot be read.
    """
    oldest = LogReader(directory, sequence).batch(_LOOKED_AT, 1 << 20)
    if oldest is None:
        return Lag(0, 0.0)
    end = LogReader(directory, _END)
    while end.batch(1, 1) is not None:
        pass
    last = max((one.sequences[1] for one in end.segments if one.sequences), default=oldest[0][-1])
    return Lag(last - oldest[0][0] + 1, age(oldest[1]))


def age(payloads: Sequence[bytes]) -> float:
    """Return the age of the first records in seconds, by the first of them that has a time; 0 without one."""
    for payload in payloads[:_LOOKED_AT]:
        at = time_of(payload)
        if at is not None:
            return max(time.time() - at / 1e6, 0.0)
    return 0.0


def time_of(payload: bytes) -> int | None:
    """Return the time of an encoded record in microseconds since the Unix epoch; None if it has none."""
    kind = kind_of(payload)
    if kind not in _TIMES:
        return None
    record: Any = getattr(record_class().FromString(payload), kind)
    return int(getattr(record, _TIMES[kind]))


_TIMES = {
    "decision": "decided_at_us",
    "outcome": "received_at_us",
    "observation": "answered_at_us",
    "delivery": "at_us",
    "lane_table": "since_us",
    "recovery": "at_us",
}
