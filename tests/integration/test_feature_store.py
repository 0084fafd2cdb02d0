"""The feature store of a real server: erasures, a failing and a stalled journal, and the role of callers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import components
import grpc
import pytest
from bundles import tiny_score_bundle
from feature_server import CONFIG, COUNT, FRAUD, PATIENT, SET, metrics, payment, row
from servers import SCORE, RunningServer, settings, start_server
from stalled_disk import injected, stalled_writes
from waiting import wait_until

from scorer import bridge, credentials
from scorer.client import Client, UnavailableError
from scorer.credentials import ClientTls
from scorer.registry import Registry
from scorer.v1 import scoring_pb2 as pb
from scorer.v1 import scoring_pb2_grpc

JOURNAL = "scorer-features"
"""Name of the thread that writes the journal."""
KEYS = {"card": "card-1"}
DOMAIN = "example.org"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "cards.json").write_text(json.dumps(SET))
    registry = Registry(tmp_path / "registry")
    tiny_score_bundle(tmp_path / "score", computed=COUNT)
    registry.alias("fraud-checkout", "live", registry.push(tmp_path / "score"))
    return tmp_path


@pytest.fixture
def server(directory: Path) -> Iterator[RunningServer]:
    with start_server(directory, settings(SCORE) + CONFIG) as server:
        yield server


def scores(client: Client, count: float) -> bool:
    """Return whether the computed value of the card is this count."""
    computed = client.score(FRAUD, row(), keys=KEYS)
    assert computed.served.features_defaulted == ""
    return computed.score == client.score(FRAUD, row(count_24h=count)).score


def files_with(directory: Path, text: bytes) -> list[str]:
    return [path.name for path in (directory / "features").iterdir() if text in path.read_bytes()]


def store(server: RunningServer) -> dict[str, Any]:
    found: dict[str, Any] = server.status()["feature_store"]
    return found


def test_an_erased_card_is_in_no_file_and_stays_erased_after_kills(directory: Path) -> None:
    with start_server(directory, settings(SCORE) + CONFIG) as server:
        with Client(server.address, timeout=PATIENT) as client:
            client.wait_ready()
            client.record_events([payment(number) for number in range(5)])
            client.record_events([payment(number, card="card-2") for number in range(5, 8)])
            assert scores(client, 5.0)
            assert files_with(directory, b"card-1")
            done = server.cli("features", "forget", "card", "card-1", "--reason", "request 7")
            assert done.returncode == 0, done.stdout + done.stderr
            assert done.stdout.strip() == "forgotten"
            assert scores(client, 0.0)
        server.kill()
    with start_server(directory) as server, Client(server.address, timeout=PATIENT) as client:
        client.wait_ready()
        assert scores(client, 0.0), "also if the server was killed at once"
        wait_until(lambda: int(store(server).get("erasures", 0)) == 0, "the erasure to be complete")
        assert files_with(directory, b"card-1") == []
        assert files_with(directory, b"card-2")
        # The id of an erased event is still known, and a new event counts.
        assert client.record_events([payment(0), payment(9)])[0].status == "duplicate"
        assert scores(client, 1.0)
        page = metrics(server)
        assert page["scorer_feature_snapshot_bytes"] > 0
        assert page["scorer_feature_erasures_pending"] == 0
        assert "snapshot of" in server.cli("status").stdout
        server.kill()
    with start_server(directory) as server, Client(server.address, timeout=PATIENT) as client:
        opened = server.event("feature_store_opened")
        assert (opened["events"], opened["snapshot_unused"]) == (1, None), "the erasure wrote a snapshot"
        client.wait_ready()
        assert scores(client, 1.0)
        other = client.score(FRAUD, row(), keys={"card": "card-2"})
        assert other.score == client.score(FRAUD, row(count_24h=3.0)).score


def test_an_erasure_is_an_event_without_the_key_and_needs_a_known_entity(server: RunningServer) -> None:
    done = server.cli("features", "forget", "card", "never-seen-card", "--reason", "request 8")
    assert done.returncode == 0, done.stderr
    assert "had no state" in done.stdout
    event = server.event("feature_entity_forgotten")
    assert (event["entity"], event["known"], event["reason"]) == ("card", False, "request 8")
    assert "never-seen-card" not in server.transcript()
    refused = server.cli("features", "forget", "device", "d-1")
    assert refused.returncode != 0
    assert "no feature set has features of" in refused.stderr + refused.stdout


def test_a_failing_journal_rejects_events_until_a_restart_and_values_stay(directory: Path) -> None:
    components.require("strace")
    with start_server(directory, settings(SCORE) + CONFIG) as server:
        with Client(server.address, timeout=PATIENT) as client:
            client.wait_ready()
            client.record_events([payment(number) for number in range(3)])
            with (
                injected(server.process.pid, [JOURNAL], "pwrite64:error=EIO"),
                pytest.raises(UnavailableError, match="Input/output error"),
            ):
                client.record_events([payment(3)])
            # The disk works again, but what is in the file is not known.
            with pytest.raises(UnavailableError, match="Input/output error"):
                client.record_events([payment(4)])
            assert "error" in store(server)["state"]
            assert client.score(FRAUD, row(), keys=KEYS).served.features_defaulted == ""
        server.kill()
    with start_server(directory) as server, Client(server.address, timeout=PATIENT) as client:
        client.wait_ready()
        assert scores(client, 3.0), "the acknowledged events and no other"
        assert [one.status for one in client.record_events([payment(3), payment(4)])] == ["recorded"] * 2
        assert scores(client, 5.0)


def test_a_stalled_journal_bounds_its_queue_and_loses_nothing(server: RunningServer) -> None:
    components.require("strace")

    def request(number: int) -> pb.RecordEventsRequest:
        events = []
        for at in range(1000):
            sent = payment(number * 1000 + at)
            events.append(
                pb.Event(
                    kind="payment",
                    id=f"{sent.id:-<80}",
                    occurred_at_us=sent.occurred_at_us,
                    keys={"card": "card-1", "terminal": "t" * 120},
                    texts={"country": "x" * 120},
                )
            )
        return pb.RecordEventsRequest(events=events)

    stub = scoring_pb2_grpc.ScoringServiceStub(server.channel())
    calls: list[Any] = []
    with stalled_writes(server.process.pid, JOURNAL):
        for number in range(60):
            calls.append(stub.RecordEvents.future(request(number), timeout=120))
            wait_until(
                lambda: calls[-1].done() or int(store(server)["recorded"]) >= 1000 * len(calls),
                "the events to be queued",
            )
            if calls[-1].done():
                break
        refused = calls.pop()
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, refused.details()
        assert "cannot keep up" in refused.details()
        assert any(key == "grpc-retry-pushback-ms" for key, _ in refused.trailing_metadata())
        assert not any(call.done() for call in calls), "no event is acknowledged before it is in the file"
        # About 8 MiB of some 400 bytes each.
        assert 10 <= len(calls) <= 40
    for call in calls:
        assert {result.status for result in call.result().results} == {pb.EVENT_STATUS_RECORDED}
    repeated = stub.RecordEvents(request(len(calls)), timeout=PATIENT)
    known = {pb.EVENT_STATUS_RECORDED, pb.EVENT_STATUS_DUPLICATE}
    assert {result.status for result in repeated.results} <= known
    assert int(store(server)["recorded"]) == 1000 * (len(calls) + 1)


def test_a_caller_needs_the_role_record_events(directory: Path) -> None:
    tls = directory / "tls"
    hosts = ["localhost", "127.0.0.1"]
    bridge.write_fleet(str(tls), DOMAIN, [("server", hosts), ("checkout", []), ("feed", [])], 1)
    grants = "".join(
        f'[[identity.grants]]\nprincipal = "spiffe://{DOMAIN}/{name}"\nroles = {json.dumps(roles)}\n'
        for name, roles in {"checkout": ["score", "describe"], "feed": ["record_events"]}.items()
    )
    secured = (
        f'[server.tls]\ncertificate = "{tls / "server.pem"}"\nkey = "{tls / "server.key"}"\n'
        f'client_ca = "{tls / "ca.pem"}"\n[identity]\ntrust_domain = "{DOMAIN}"\n{grants}'
    )
    sent = pb.RecordEventsRequest(
        events=[
            pb.Event(kind="payment", id="p1", occurred_at_us=payment(1).occurred_at_us, keys={"card": "c"})
        ]
    )

    def record(name: str) -> pb.RecordEventsResponse:
        own = ClientTls(tls / "ca.pem", tls / f"{name}.pem", tls / f"{name}.key")
        with credentials.channel(server.address, own) as channel:
            return scoring_pb2_grpc.ScoringServiceStub(channel).RecordEvents(sent, timeout=PATIENT)

    with start_server(directory, settings(SCORE) + CONFIG + secured) as server:
        with pytest.raises(grpc.RpcError) as error:
            record("checkout")
        assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "spiffe://example.org/checkout has no grant of the role record_events" in error.value.details()
        assert record("feed").results[0].status == pb.EVENT_STATUS_RECORDED
