"""Feature sets and events for tests of feeds, and the process `scorer features feed`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from servers import environment
from waiting import PATIENCE

from scorer.bridge import FeatureFeed
from scorer.features import parse_set
from scorer.features.canonical import canonical_json
from scorer.v1.scoring_pb2 import Event

TOPIC = "events"
DOCUMENT: dict[str, Any] = {
    "name": "cards",
    "version": 1,
    "events": {
        "payment": {
            "entities": ["card", "terminal"],
            "numbers": ["amount"],
            "texts": ["country"],
            "accept_late": "7d",
        }
    },
    "features": [
        {
            "name": "payments_1d", "entity": "card", "event": "payment",
            "aggregate": "count", "window": "1d", "default": 2,
        },
        {
            "name": "mean_1d", "entity": "card", "event": "payment",
            "aggregate": "mean", "of": "amount", "window": "1d", "default": 10,
        },
        {
            "name": "cards_7d", "entity": "terminal", "event": "payment",
            "aggregate": "distinct", "of": "card", "window": "7d",
        },
    ],
}  # fmt: skip
CANONICAL: bytes = canonical_json(parse_set(DOCUMENT))


def payment(number: int, *, card: str = "card-1", ago: float = 60.0, amount: float = 20.0) -> bytes:
    """An encoded event; `number` makes its id."""
    at = int((time.time() - ago) * 1e6)
    keys = {"card": card, "terminal": "t1"}
    return Event(
        kind="payment", id=f"p{number}", occurred_at_us=at, keys=keys, numbers={"amount": amount}
    ).SerializeToString()


def feed_of(address: str, definition: bytes = CANONICAL, **redis: Any) -> FeatureFeed:
    """A feed that writes to Redis in this process."""
    return FeatureFeed(json.dumps({"redis": {"address": address, **redis}}), definition)


def write(feed: FeatureFeed, events: Sequence[bytes], partition: int = 0, *, last: bool = True) -> list[str]:
    """Write events after the position of a partition, received now; `last` marks the state as complete."""
    position = feed.position(TOPIC, partition)
    after = ((position or (0, False))[0] + len(events), last or (position is not None and position[1]))
    now = int(time.time() * 1e6)
    results, _, _ = feed.write(TOPIC, partition, position, after, list(events), [now] * len(events))
    if last:
        feed.complete(TOPIC, partition + 1)
    return results


def values(feed: FeatureFeed, features: Sequence[str], now_us: int | None = None, **keys: str) -> list[float]:
    """Values of features for one key of each entity."""
    at = int(time.time() * 1e6) if now_us is None else now_us
    columns: dict[str, list[str | None]] = {entity: [key] for entity, key in keys.items()}
    found: list[float] = np.frombuffer(feed.read_batch(list(features), columns, [at]), np.float32).tolist()
    return found


class FeedProcess:
    """A process `scorer features feed`."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self._log = directory / "feed.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "scorer.cli", "features", "feed", *arguments],
                cwd=directory,
                env=environment(),
                stdout=log,
                stderr=log,
            )

    @property
    def text(self) -> str:
        """What all processes of the directory have printed."""
        return self._log.read_text()

    def wait(self) -> int:
        """Return the exit code."""
        return self.process.wait(PATIENCE * 2)

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait(PATIENCE)


@contextmanager
def feeding(directory: Path, *arguments: str) -> Iterator[FeedProcess]:
    """A process that is ended with the block."""
    started = FeedProcess(directory, *arguments)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.kill()


def write_feed_settings(directory: Path, text: str) -> None:
    """Write `feed.toml` and the feature set `cards.json`."""
    (directory / "cards.json").write_bytes(CANONICAL)
    (directory / "feed.toml").write_text(text)
