"""Tests that clients and platforms of a released version work with servers of this version.

They send and decode messages with the descriptors of the release. A server of the release is not run, because
its binary is not built here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bundles import FEATURES, rows
from old_wire import RELEASES, OldWire
from servers import RunningServer, open_channel, start_server
from waiting import PATIENCE

from scorer.client import Client
from scorer.registry import Registry

SCORING, CONTROL = "scorer.v1.ScoringService", "scorer.v1.ControlService"
FRAUD, AUTHORISE = "fraud.checkout", "action.authorise"

pytestmark = pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)


@pytest.fixture
def wire(release: Path) -> OldWire:
    return OldWire(release)


@pytest.fixture
def server(tmp_path: Path, registry: Registry) -> Iterator[RunningServer]:
    with start_server(tmp_path) as server:
        yield server


def test_a_client_of_a_release_gets_the_answers_that_a_client_of_this_version_gets(
    wire: OldWire, server: RunningServer
) -> None:
    named = wire.message("scorer.v1.NamedFeatures")
    feature = wire.message("scorer.v1.Feature")
    with open_channel(server.address) as channel, Client(server.address, timeout=PATIENCE) as client:
        described = wire.call(
            channel, SCORING, "Describe", wire.message("scorer.v1.DescribeRequest")(checkpoint=FRAUD)
        ).checkpoints[0]
        now = client.describe(FRAUD)
        assert [one.name for one in described.features] == list(now.feature_names)
        assert described.schema_fingerprint == now.fingerprint
        for number, row in enumerate(rows(10)):
            values = dict(zip(FEATURES, map(float, row), strict=True))
            sent = named(features=[feature(name=name, number=value) for name, value in values.items()])
            payment = f"payment-{number}"
            request = wire.message("scorer.v1.ScoreRequest")(checkpoint=FRAUD, request_id=payment, named=sent)
            old, new = (
                wire.call(channel, SCORING, "Score", request),
                client.score(FRAUD, values, request_id=payment),
            )
            assert (old.score, old.decision, old.decision_id) == (new.score, new.decision, payment)
            assert (old.served.bundle, old.logged) == (new.served.bundle, True)

            select = wire.message("scorer.v1.SelectActionRequest")(
                checkpoint=AUTHORISE, request_id=payment, named=sent
            )
            chosen = wire.call(channel, SCORING, "SelectAction", select)
            # The request of a client of this version is a retry of the same request.
            again = client.select_action(AUTHORISE, values, request_id=payment)
            assert again.replayed
            assert (chosen.action, chosen.propensity) == (again.action, again.propensity)
            report = wire.message("scorer.v1.ReportOutcomeRequest")(
                checkpoint=AUTHORISE,
                decision_id=payment,
                kind="authorised",
                value=1.0,
            )
            assert not wire.call(channel, SCORING, "ReportOutcome", report).duplicate
            assert client.report_outcome(AUTHORISE, payment, "authorised", 1.0).duplicate


def test_a_platform_of_a_release_changes_lanes_of_a_server_of_this_version(
    wire: OldWire, server: RunningServer, registry: Registry
) -> None:
    with open_channel(server.control) as channel:
        before = wire.call(channel, CONTROL, "GetStatus", wire.message("scorer.v1.GetStatusRequest")())
        assert before.state == "SERVING"
        [fraud] = [one for one in before.checkpoints if one.checkpoint == FRAUD]
        live = fraud.lanes[0].bundle
        [other] = {record.digest for record in registry.list("fraud-checkout")} - {live}
        lane = wire.message("scorer.v1.Lane")
        request = wire.message("scorer.v1.SetLanesRequest")(
            checkpoint=FRAUD,
            lanes=[lane(name="live", bundle=live, share=0.5), lane(name="canary", bundle=other, share=0.5)],
            reason="a canary",
            expected_lane_table=before.lane_table,
        )
        table = wire.call(channel, CONTROL, "SetLanes", request).lane_table
        after = wire.call(channel, CONTROL, "GetStatus", wire.message("scorer.v1.GetStatusRequest")())
        assert after.lane_table == table > before.lane_table
        [fraud] = [one for one in after.checkpoints if one.checkpoint == FRAUD]
        assert [(one.name, one.bundle, one.share) for one in fraud.lanes] == [
            ("live", live, 0.5),
            ("canary", other, 0.5),
        ]
