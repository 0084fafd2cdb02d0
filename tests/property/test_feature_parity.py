"""The online store against the offline values: canonical form, digests, and a replay with restarts."""

import pytest

from loadtests.feature_events import event_table, random_decisions, random_events, random_set, seeded
from loadtests.feature_replay import replay
from scorer import bridge
from scorer.features import canonical_json, feature_digest
from scorer.features.events import EventTable
from scorer.features.parity import compare

pytestmark = pytest.mark.skipif(
    not hasattr(bridge, "FeatureStore"), reason="the extension has no bindings of the feature store"
)


@pytest.mark.parametrize("seed", range(20))
def test_both_parsers_have_one_canonical_form_and_the_same_digests(seed):
    declared = random_set(seeded(seed))
    definition = canonical_json(declared)
    assert bridge.canonical_features(definition) == definition
    assert bridge.feature_digests(definition) == {
        feature.name: feature_digest(declared, feature.name) for feature in declared.features
    }


def test_a_replay_with_duplicates_late_events_and_restarts_equals_the_offline_values(tmp_path):
    rng = seeded(3)
    declared = random_set(rng, 20)
    events = random_events(rng, 20_000, days=20, keys=40)
    served = replay(declared, events, random_decisions(rng, 2000, days=22, keys=40), tmp_path)
    tables = {kind: EventTable(event_table(declared, kind, of)) for kind, of in events.items()}
    report = compare(declared, tables, served)
    assert report.passed, report.document()
    assert [one.compared for one in report.features] == [2000] * len(declared.features)
