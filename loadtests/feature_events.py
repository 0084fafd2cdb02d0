"""Random feature sets, events and decisions for replays and tests of computed features."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from scorer.features import FeatureSet, parse_set

SECOND = 1_000_000
DAY = 86_400 * SECOND
START = 1_767_225_600 * SECOND + 1234
DOCUMENT: dict[str, Any] = {
    "name": "behaviour",
    "version": 1,
    "owner": "fraud-data",
    "events": {
        "payment": {
            "entities": ["card", "terminal"],
            "numbers": ["amount"],
            "texts": ["country"],
            "accept_late": "2d",
        },
        "fraud": {"entities": ["terminal"], "accept_late": "12d"},
    },
}
WINDOWS = (("10m", 0), ("1h", 0), ("6h", "6h"), ("1d", 0), ("1d", "1d"), ("7d", "2d"))


def random_set(rng: random.Random, size: int = 12) -> FeatureSet:
    """Return a set of `size` random aggregates, and a ratio with its two parts."""
    aggregates = [
        "count",
        "sum",
        "mean",
        "min",
        "max",
        "distinct",
        "seconds_since_last",
        "seconds_since_first",
    ]
    features = []
    for number in range(size):
        window, delay = rng.choice(WINDOWS)
        feature: dict[str, Any] = {
            "name": f"f{number}",
            "entity": rng.choice(["card", "terminal"]),
            "event": "payment",
            "aggregate": rng.choice([*aggregates, "decayed_count", "decayed_sum"]),
            "default": rng.choice([None, -1.0, 0.5]),
        }
        if feature["aggregate"].startswith("decayed"):
            feature["half_life"] = rng.choice(["1h", "1d"])
        else:
            feature |= {"window": window, "delay": delay}
        if feature["aggregate"] in {"sum", "mean", "min", "max", "decayed_sum"}:
            feature["of"] = "amount"
        if feature["aggregate"] == "distinct":
            feature["of"] = rng.choice(["country", "terminal" if feature["entity"] == "card" else "card"])
        if rng.random() < 0.4:
            feature["where"] = {"country": ["NL", "O'Neil"]}
        features.append(feature)
    # Both parts of the ratio exist in every set.
    features += [
        {"name": "seen", "entity": "terminal", "event": "payment", "aggregate": "count", "window": "7d"},
        {"name": "frauds", "entity": "terminal", "event": "fraud", "aggregate": "count", "window": "7d"},
        {"name": "rate", "ratio": ["frauds", "seen"], "default": 0},
    ]
    return parse_set({**DOCUMENT, "features": features})


def random_events(
    rng: random.Random, count: int, days: int = 6, keys: int = 6
) -> dict[str, list[dict[str, Any]]]:
    """Return payments and frauds with duplicates, late, early, future and incomplete ones."""
    events: dict[str, list[dict[str, Any]]] = {"payment": [], "fraud": []}
    for number in range(count):
        kind = "payment" if rng.random() < 0.8 else "fraud"
        occurred = START + rng.randrange(days * DAY)
        lag = rng.choice(
            [0, 0, rng.randrange(SECOND), rng.randrange(DAY), rng.randrange(3 * DAY), -3 * SECOND]
        )
        if kind == "fraud":
            lag += rng.choice([0, 2 * DAY, 11 * DAY])
        if rng.random() < 0.02:
            lag = -10 * SECOND
        event: dict[str, Any] = {
            "id": f"e{rng.randrange(number // 4, number + 1)}" if rng.random() < 0.3 else f"n{number}",
            "occurred_at": occurred,
            "received_at": occurred + lag,
            "keys": {"terminal": f"t{rng.randrange(keys)}" if rng.random() < 0.9 else None},
            "numbers": {},
            "texts": {},
        }
        if kind == "payment":
            event["keys"]["card"] = f"c{rng.randrange(keys)}" if rng.random() < 0.9 else None
            event["numbers"]["amount"] = round(rng.uniform(-5, 200), 2) if rng.random() < 0.9 else None
            event["texts"]["country"] = rng.choice(["NL", "DE", "O'Neil", None])
        events[kind].append(event)
    return events


def random_decisions(rng: random.Random, count: int, days: int = 8, keys: int = 7) -> list[dict[str, Any]]:
    """Return decisions with id, time and keys, some of which are absent or never seen."""
    return [
        {
            "id": f"d{number}",
            "time": START + rng.randrange(days * DAY),
            "card": f"c{rng.randrange(keys)}" if rng.random() < 0.9 else None,
            "terminal": f"t{rng.randrange(keys)}" if rng.random() < 0.9 else None,
        }
        for number in range(count)
    ]


def event_table(declared: FeatureSet, kind: str, events: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the table of events of one kind."""
    definition = declared.events[kind]
    columns = {
        "id": pa.array([event["id"] for event in events], pa.string()),
        "occurred_at": pa.array([event["occurred_at"] for event in events], pa.int64()),
        "received_at": pa.array([event["received_at"] for event in events], pa.int64()),
    }
    for what, names, of in (
        ("keys", definition.entities, pa.string()),
        ("numbers", definition.numbers, pa.float64()),
        ("texts", definition.texts, pa.string()),
    ):
        columns |= {name: pa.array([event[what].get(name) for event in events], of) for name in names}
    return pa.table(columns)


def seeded(seed: int) -> random.Random:
    """Return a generator of random numbers."""
    return random.Random(seed)
