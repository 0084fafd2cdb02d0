"""Replay of events and decisions through the online store of features, in the order of receipt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scorer.features import FeatureSet, canonical_json

MEMORY_BYTES = 2 << 30
ROWS = 10_000
"""Largest number of rows that one call passes to the store."""


def replay(
    declared: FeatureSet,
    events: Mapping[str, Sequence[Mapping[str, Any]]],
    decisions: Sequence[dict[str, Any]],
    directory: Path,
    restarts: int = 2,
) -> pa.Table:
    """Record events and read decisions in the order of time, with restarts of the store in between.

    Args:
        declared: The feature set.
        events: Events by kind, as `loadtests.feature_events.random_events` returns them.
        decisions: Decisions. One at the time of a receipt is moved by a microsecond.
        directory: Directory of the store's journal.
        restarts: How often the store is closed and opened again.

    Returns:
        The decisions, with `served FEATURE` for each feature, as `scorer.features.parity.compare` takes them.
    """
    from scorer import bridge

    names = [feature.name for feature in declared.features]
    received = {event["received_at"] for of in events.values() for event in of}
    for decision in decisions:
        while decision["time"] in received:
            decision["time"] += 1
    queue = [(event["received_at"], kind, event) for kind, of in events.items() for event in of]
    queue += [(decision["time"], "", decision) for decision in decisions]
    queue.sort(key=lambda one: one[0])
    cuts = {len(queue) * (number + 1) // (restarts + 1) for number in range(restarts)}
    definition, served = canonical_json(declared), []
    store = bridge.FeatureStore(definition, directory, MEMORY_BYTES)
    start = 0
    while start < len(queue):
        if start in cuts:
            store.close()
            del store
            store = bridge.FeatureStore(definition, directory, MEMORY_BYTES, queue[start][0])
        end, kind = start + 1, queue[start][1]
        while end < len(queue) and queue[end][1] == kind and end not in cuts and end - start < ROWS:
            end += 1
        rows = [row for _, _, row in queue[start:end]]
        if kind:
            _record(store, declared, kind, rows)
        else:
            keys = {entity: [row.get(entity) for row in rows] for entity in declared.entities}
            found = store.read_batch(names, keys, [row["time"] for row in rows])
            values = np.frombuffer(found, np.float32).reshape(len(rows), len(names)).tolist()
            for row, of in zip(rows, values, strict=True):
                served.append({**row, **{f"served {name}": one for name, one in zip(names, of, strict=True)}})
        start = end
    store.close()
    return pa.Table.from_pylist(served)


def _record(store: Any, declared: FeatureSet, kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    of = declared.events[kind]
    store.record_batch(
        [kind] * len(rows),
        [row["id"] for row in rows],
        [row["occurred_at"] for row in rows],
        [row["received_at"] for row in rows],
        {name: [row["keys"].get(name) for row in rows] for name in of.entities},
        {name: [row["numbers"].get(name) for row in rows] for name in of.numbers},
        {name: [row["texts"].get(name) for row in rows] for name in of.texts},
    )
