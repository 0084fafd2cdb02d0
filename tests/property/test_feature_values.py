"""Offline values of features against a reference by definition, for random sets, events and decisions."""

import math

import feature_reference as reference
import pytest

from loadtests.feature_events import event_table, random_decisions, random_events, random_set, seeded
from scorer.features.building import values_of
from scorer.features.events import EventTable


@pytest.mark.parametrize("seed", range(8))
def test_values_are_those_of_the_definition(seed):
    import pyarrow as pa

    rng = seeded(seed)
    declared = random_set(rng)
    events = random_events(rng, 400)
    decisions = random_decisions(rng, 150)
    # Some decisions are at the very moment at which an event is received, which they do not count.
    for decision, event in zip(decisions[:30], rng.sample(events["payment"], 30), strict=True):
        decision["time"] = event["received_at"]
    tables = {kind: EventTable(event_table(declared, kind, of)) for kind, of in events.items()}
    found = values_of(declared, tables, pa.Table.from_pylist(decisions)).to_pylist()

    recorded = {
        kind: reference.recorded(of, declared.events[kind].accept_late * 1_000_000)
        for kind, of in events.items()
    }
    assert [row["id"] for row in found] == [decision["id"] for decision in decisions]
    for row, decision in zip(found, decisions, strict=True):
        for feature in declared.features:
            expected = reference.value(declared, feature, recorded, decision, decision["time"])
            value = math.nan if row[feature.name] is None else row[feature.name]
            assert value == pytest.approx(expected, rel=1e-6, abs=1e-6, nan_ok=True), (feature, decision)
