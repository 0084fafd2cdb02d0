"""The feature store of the extension: columns of events in, columns of values out, and a restart."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from scorer.bridge import FeatureStore, canonical_features, feature_digests
from scorer.errors import ConfigError

START = 1_800_000_000 * 1_000_000
DEFINITION = json.dumps(
    {
        "name": "cards",
        "version": 1,
        "events": {
            "payment": {
                "entities": ["card"],
                "numbers": ["amount"],
                "texts": ["country"],
                "accept_late": 86400,
            }
        },
        "features": [
            {"name": "count", "entity": "card", "event": "payment", "aggregate": "count", "window": 86400},
            {
                "name": "mean",
                "entity": "card",
                "event": "payment",
                "aggregate": "mean",
                "of": "amount",
                "window": 86400,
            },
        ],
    }
).encode()


def record(store: FeatureStore) -> list[str]:
    return store.record_batch(
        ["payment"] * 4 + ["refund"],
        ["a", "b", "b", "c", "d"],
        [START, START, START, START + 60_000_000, START],
        [START] * 5,
        {"card": ["c1", "c1", "c1", "c1", "c1"]},
        {"amount": [10.0, None, 5.0, 1.0, 1.0]},
        {"country": ["NL", None, None, None, None]},
    )


def read(store: FeatureStore) -> tuple[float, ...]:
    values = store.read_batch(["mean", "count"], {"card": ["c1", "c2", None]}, [START] * 3)
    return struct.unpack("6f", values)


def test_events_are_recorded_and_values_survive_a_restart(tmp_path: Path) -> None:
    store = FeatureStore(DEFINITION, tmp_path / "store", now_us=START)
    assert record(store) == ["new", "new", "duplicate", "future", "unknown_kind"]
    before = read(store)
    assert before[:2] == (10.0, 2.0), "the event without an amount counts, and has no part in the mean"
    assert before[2] != before[2], "no event: missing"
    assert before[3] == 0.0
    assert before[5] != before[5], "no key: missing"
    store.close()
    del store
    again = FeatureStore(DEFINITION, tmp_path / "store", now_us=START)
    assert read(again)[:2] == before[:2]
    assert record(again)[:2] == ["duplicate", "duplicate"]
    stats = json.loads(again.stats())
    assert (stats["entities"], stats["recovered"], stats["duplicates"]) == (1, 0, 3)


def test_definitions_have_digests_and_bad_calls_a_reason() -> None:
    digests = feature_digests(DEFINITION)
    assert set(digests) == {"count", "mean"}
    assert digests == feature_digests(canonical_features(DEFINITION))
    assert all(len(digest) == 64 for digest in digests.values())
    with pytest.raises(ConfigError, match="window and delay must be multiples"):
        FeatureStore(DEFINITION.replace(b'"window": 86400}', b'"window": 86401}', 1))
    store = FeatureStore(DEFINITION)
    with pytest.raises(ConfigError, match="give all the same length"):
        store.record_batch(["payment"], ["a", "b"], [START], [START], {}, {}, {})
    with pytest.raises(ConfigError, match='feature "none": the set has none of this name'):
        store.read_batch(["none"], {}, [START])
