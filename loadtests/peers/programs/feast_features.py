"""Feast's side of `loadtests/features_redis.py`, in Feast's own environment.

`prepare DIRECTORY PORT VALUES` writes a repository with three views of ten features and their values into
the Redis at a port. `sdk DIRECTORY KEYS RATE SECONDS` reads with the SDK, and prints what it measured.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any


def _store(directory: str) -> Any:
    from feast import FeatureStore

    return FeatureStore(repo_path=directory)


def prepare(directory: str, port: str, values: str) -> None:
    """Write the repository, its registry, and the values of all entities."""
    import pandas as pd
    from feast import Entity, FeatureService, FeatureView, Field, FileSource, ValueType
    from feast.types import Float32

    home = Path(directory)
    (home / "feature_store.yaml").write_text(
        "project: bench\nregistry: registry.db\nprovider: local\n"
        f'online_store: {{type: redis, connection_string: "127.0.0.1:{port}"}}\n'
        "offline_store: {type: dask}\nentity_key_serialization_version: 3\n"
    )
    document = json.loads(Path(values).read_text())
    store, views = _store(directory), []
    now = datetime.now(UTC)
    for entity, of in document.items():
        frame = pd.DataFrame(of)
        frame["event_timestamp"] = pd.Timestamp(now)
        frame.to_parquet(home / f"{entity}.parquet")
        source = FileSource(
            name=f"{entity}_source", path=str(home / f"{entity}.parquet"), timestamp_field="event_timestamp"
        )
        declared = Entity(name=entity, join_keys=[entity], value_type=ValueType.STRING)
        features = [name for name in of if name != entity]
        view = FeatureView(
            name=f"{entity}_view",
            entities=[declared],
            ttl=timedelta(days=30),
            schema=[Field(name=name, dtype=Float32) for name in features],
            source=source,
            online=True,
        )
        views.append(view)
        store.apply([declared, source, view])
        store.write_to_online_store(f"{entity}_view", frame)
    store.apply([FeatureService(name="all", features=views)])


def sdk(directory: str, keys: str, rate: str, seconds: str) -> None:
    """Read one row after another at a rate, and print latencies and processor time."""
    store = _store(directory)
    rows = json.loads(Path(keys).read_text())
    service = store.get_feature_service("all")

    def read(number: int) -> Any:
        return store.get_online_features(features=service, entity_rows=[rows[number % len(rows)]]).to_dict()

    first = read(0)
    for number in range(50):
        read(number)
    interval, count = 1 / float(rate), int(float(rate) * float(seconds))
    latencies, began, cpu = [], time.perf_counter(), time.process_time()
    for number in range(count):
        due = began + number * interval
        if (wait := due - time.perf_counter()) > 0:
            time.sleep(wait)
        start = time.perf_counter()
        read(number)
        latencies.append(time.perf_counter() - start)
    elapsed = time.perf_counter() - began
    print(
        json.dumps(
            {
                "latencies": latencies,
                "cpu": (time.process_time() - cpu) / count,
                "rate": count / elapsed,
                "first": {name: value[0] for name, value in first.items()},
            }
        )
    )


if __name__ == "__main__":
    {"prepare": prepare, "sdk": sdk}[sys.argv[1]](*sys.argv[2:])
