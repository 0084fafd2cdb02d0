"""Computed features on a real server: events, scores that use them, restarts, refusals, lanes, the log."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from bundles import FEATURES, tiny_action_bundle, tiny_score_bundle
from feature_server import BOTH, CONFIG, COUNT, FRAUD, PATIENT, SELECT, SET, metrics, payment, row
from servers import ACTION, SCORE, RunningServer, scorer_in_process, settings, start_server
from waiting import wait_until

from scorer import aio
from scorer.client import Client, ClientError, Event, InvalidRequestError, PreconditionError
from scorer.log import LogReader
from scorer.registry import Registry
from scorer.v1 import scoring_pb2 as pb
from scorer.v1 import scoring_pb2_grpc


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "cards.json").write_text(json.dumps(SET))
    registry = Registry(tmp_path / "registry")
    tiny_score_bundle(tmp_path / "score", computed=COUNT)
    tiny_action_bundle(tmp_path / "action", computed=BOTH)
    registry.alias("fraud-checkout", "live", registry.push(tmp_path / "score"))
    registry.alias("action-authorise", "live", registry.push(tmp_path / "action"))
    return tmp_path


@pytest.fixture
def server(directory: Path) -> Iterator[RunningServer]:
    with start_server(directory, settings(SCORE + ACTION) + CONFIG) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with Client(server.address, timeout=PATIENT) as client:
        client.wait_ready()
        yield client


def decisions(directory: Path) -> list[Any]:
    records = [record for _, record in LogReader(directory / "decisions").records()]
    return [record.decision for record in records if record.HasField("decision")]


def test_events_are_used_by_scores_also_after_a_restart_and_a_kill(directory: Path) -> None:
    keys = {"card": "card-1"}
    with start_server(directory, settings(SCORE + ACTION) + CONFIG) as server:
        with Client(server.address, timeout=PATIENT) as client:
            client.wait_ready()
            results = client.record_events([payment(number) for number in range(5)])
            assert [one.status for one in results] == ["recorded"] * 5
            again = client.record_events([payment(4), payment(5)])
            assert [one.status for one in again] == ["duplicate", "recorded"]
            computed = client.score(FRAUD, row(), keys=keys)
            stated = client.score(FRAUD, row(count_24h=6.0), keys=keys)
            assert (computed.score, computed.served.features_defaulted) == (stated.score, "")
            assert client.score(FRAUD, row(count_24h=0.0)).score != stated.score
        status = server.status()["feature_store"]
        assert (status["recorded"], status["duplicates"], status["entities"]) == ("6", "1", "2")
        assert status["sets"] == ["cards@1"]
        assert status["state"] == "ok"
        assert "6 recorded, 1 duplicates" in server.cli("status").stdout
        server.kill()
    with start_server(directory) as server, Client(server.address, timeout=PATIENT) as client:
        opened = server.event("feature_store_opened")
        assert (opened["events"], opened["damaged"]) == (6, {})
        client.wait_ready()
        assert client.score(FRAUD, row(), keys=keys).score == computed.score
        assert client.record_events([payment(2)])[0].status == "duplicate"
        client.record_events([payment(6)])
        assert server.stop() == 0
    with start_server(directory) as server, Client(server.address, timeout=PATIENT) as client:
        opened = server.event("feature_store_opened")
        # The stop wrote a snapshot, so that no event is read again.
        assert (opened["events"], opened["snapshot_entities"], opened["snapshot_unused"]) == (0, 2, None)
        client.wait_ready()
        seven = client.score(FRAUD, row(count_24h=7.0))
        assert client.score(FRAUD, row(), keys=keys).score == seven.score
        server.stop()
    verified = scorer_in_process(
        "log", "verify", "--log", str(directory / "decisions"), "--bundles", str(directory / "registry")
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_every_method_reads_the_features_and_marks_defaults(
    server: RunningServer, client: Client, directory: Path
) -> None:
    client.record_events([payment(number, amount=30.0) for number in range(3)])
    keys = {"card": "card-1", "terminal": "t1", "unused": "x"}
    described = client.describe(FRAUD)
    assert described.entities == ("card",)
    assert [feature.computed for feature in described.features] == ["", "", "payments_1d", ""]
    row_of = [50.0, 15.0, None, 3.0]
    assert client.score(FRAUD, row_of, keys=keys).score == client.score(FRAUD, row(count_24h=3.0)).score
    missing = client.score(FRAUD, row())
    assert missing.served.features_defaulted == "no_key"
    assert missing.score == client.score(FRAUD, row(count_24h=2.0)).score, "the declared default"
    unknown = client.score(FRAUD, row(), keys={"card": "never-seen"})
    assert unknown.served.features_defaulted == ""
    assert unknown.score == client.score(FRAUD, row(count_24h=0.0)).score
    batch = client.score_batch(FRAUD, [row_of, row_of], keys={"card": ["card-1", None]})
    assert batch.scores == (client.score(FRAUD, row(count_24h=3.0)).score, missing.score)
    assert batch.served.features_defaulted == "no_key"
    action = client.select_action(SELECT, {"amount": 50.0, "hour": 15.0}, keys=keys, request_id="a")
    assert action.served.features_defaulted == ""
    decided = client.decide(FRAUD, SELECT, {"amount": 50.0, "hour": 15.0}, keys=keys, request_id="d")
    assert decided.action is not None
    assert decided.action.served.features_defaulted == decided.score.served.features_defaulted == ""

    async def score() -> float:
        async with aio.Client(server.address, timeout=PATIENT) as own:
            assert (await own.record_events([payment(1)]))[0].status == "duplicate"
            return (await own.score(FRAUD, row(), keys=keys)).score

    assert asyncio.run(score()) == client.score(FRAUD, row(count_24h=3.0)).score
    with pytest.raises(InvalidRequestError, match="one per row"):
        client.score_batch(FRAUD, [row_of], keys={"card": ["a", "b"]})
    page = metrics(server)
    assert page['scorer_features_defaulted_total{set="cards",reason="no_key"}'] == 2
    assert page['scorer_feature_unknown_entities_total{set="cards"}'] == 1
    assert page['scorer_feature_events_total{result="duplicate"}'] == 1
    assert page['scorer_features_stated_total{set="cards"}'] >= 4
    assert (
        page['scorer_feature_load_seconds_count{set="cards"}']
        == page['scorer_feature_loads_total{set="cards"}']
    )
    server.stop()
    recorded = {one.decision_id: one for one in decisions(directory) if one.checkpoint == SELECT}
    for one in recorded.values():
        assert list(one.features[2:4]) == [3.0, 30.0]
        assert (one.features_defaulted, list(one.stated_features)) == ("", [])
        assert one.features_at_us > 0
    of_score = next(one for one in decisions(directory) if one.decision_id == "d" and one.checkpoint == FRAUD)
    assert of_score.features_at_us == recorded["d"].features_at_us, "Decide reads once"


def test_bad_events_are_refused_one_by_one_and_bad_batches_as_a_whole(
    server: RunningServer, client: Client
) -> None:
    good = payment(1)
    bad = [
        (replace(good, kind="refund"), "unknown_kind"),
        (replace(good, id=""), "id"),
        (replace(good, keys={}), "no_key"),
        (replace(good, keys={"device": "d"}), "unknown_entity"),
        (replace(good, numbers={"fee": 1.0}), "unknown_field"),
        (replace(good, numbers={"amount": float("nan")}), "number"),
        (replace(good, occurred_at_us=int((time.time() + 3600) * 1e6)), "future"),
        (replace(good, occurred_at_us=0), "late"),
        (replace(good, keys={"card": "4111 1111 1111 1111"}), "privacy"),
    ]
    results = client.record_events([*(event for event, _ in bad), good])
    assert [one.reason for one in results] == [*(reason for _, reason in bad), ""]
    assert results[-1].status == "recorded"
    assert not any("4111" in one.error for one in results)
    assert all(one.error for one in results[:-1])
    with pytest.raises(InvalidRequestError, match="send 1 to 1000"):
        client.record_events([])
    stub = scoring_pb2_grpc.ScoringServiceStub(server.channel())
    too_many = pb.RecordEventsRequest(events=[pb.Event(kind="payment")] * 1001)
    large = pb.RecordEventsRequest(events=[pb.Event(kind="x" * 10_000_000)])
    keys = {f"entity-{number}": "k" for number in range(100_000)}
    many = pb.RecordEventsRequest(events=[pb.Event(kind="payment", keys=keys)])
    for request, codes in [
        (too_many, {grpc.StatusCode.INVALID_ARGUMENT}),
        (large, {grpc.StatusCode.RESOURCE_EXHAUSTED}),
        (many, {grpc.StatusCode.RESOURCE_EXHAUSTED}),
    ]:
        with pytest.raises(grpc.RpcError) as error:
            stub.RecordEvents(request, timeout=PATIENT)
        assert error.value.code() in codes, error.value.details()
    with pytest.raises(ClientError, match="at most 32"):
        client.score(FRAUD, row(), keys={f"e{number}": "k" for number in range(33)})
    with pytest.raises(ClientError, match="keys: 129 bytes"):
        client.score(FRAUD, row(), keys={"card": "x" * 129})
    assert client.score(FRAUD, row(), keys={"card": "card-1"}).served.features_defaulted == ""
    assert metrics(server)['scorer_feature_events_refused_total{reason="privacy"}'] == 1


def test_a_bundle_is_refused_whose_features_the_server_does_not_have(directory: Path) -> None:
    with start_server(directory, settings(SCORE), ready=False) as server:
        refused = server.event("bundle_refused")
        assert refused["reason"] == "features"
        assert "this server has no feature sets; add the set to [features] sets" in refused["error"]
    other = json.loads(json.dumps(SET))
    other["features"][0]["window"] = 3600
    (directory / "cards.json").write_text(json.dumps(other))
    with start_server(directory, settings(SCORE) + CONFIG, ready=False) as server:
        refused = server.event("bundle_refused")
        assert 'feature "payments_1d": set cards@1 of this server defines it otherwise' in refused["error"]
    (directory / "cards.json").write_text("{}")
    with start_server(directory, settings(SCORE) + CONFIG, ready=False) as server:
        assert server.wait() != 0
        assert "cards.json: name: the key is missing; add it" in server.transcript()


def test_a_server_without_feature_sets_records_no_events(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    tiny_score_bundle(tmp_path / "score")
    registry.alias("fraud-checkout", "live", registry.push(tmp_path / "score"))
    with start_server(tmp_path, settings(SCORE)) as server, Client(server.address, timeout=PATIENT) as client:
        client.wait_ready()
        with pytest.raises(PreconditionError, match="no feature sets"):
            client.record_events([payment(1)])
        assert "feature_store" not in server.status()


def test_an_observe_lane_computes_features_that_the_live_bundle_does_not_read(directory: Path) -> None:
    registry = Registry(directory / "registry")
    tiny_score_bundle(directory / "plain")
    registry.alias("fraud-checkout", "live", registry.push(directory / "plain"))
    shadow = registry.push(directory / "score")
    tiny_score_bundle(directory / "more", variant=2, computed=BOTH)
    more = registry.push(directory / "more")
    with start_server(directory, settings(SCORE) + CONFIG) as server:
        with Client(server.address, timeout=PATIENT) as client:
            client.wait_ready()
            client.record_events([payment(number, amount=30.0) for number in range(4)])
            done = server.cli("observe", FRAUD, f"computed={shadow}:1", f"more={more}:1")
            assert done.returncode == 0, done.stderr
            sent = {"amount": 50.0, "hour": 15.0, "distance": 3.0}
            answer = client.score(FRAUD, sent, keys={"card": "card-1"}, request_id="seen")
            assert answer.served.features_defaulted == "", "the live bundle reads no computed feature"
            client.score(FRAUD, {**sent, "count_24h": 9.0}, keys={"card": "card-1"}, request_id="stated")
            client.score(FRAUD, sent, request_id="keyless")

            def evaluated() -> bool:
                return all(int(one["evaluated"]) == 3 for one in server.status()["observers"])

            wait_until(evaluated, "all requests are observed")
        server.stop()
    records = [record for _, record in LogReader(directory / "decisions").records()]
    observed = [record.observation.decision for record in records if record.HasField("observation")]
    seen = {(one.lane, one.decision_id): one for one in observed}
    assert list(seen["computed", "seen"].features) == [50.0, 15.0, 4.0, 3.0]
    assert list(seen["more", "seen"].features) == [50.0, 15.0, 4.0, 3.0], "stated values win"
    assert list(seen["more", "seen"].stated_features) == [FEATURES.index("distance")]
    assert seen["computed", "stated"].features[2] == 9.0
    assert list(seen["computed", "stated"].stated_features) == [2]
    assert seen["computed", "keyless"].features[2] == 2.0
    assert seen["computed", "keyless"].features_defaulted == "no_key"
    live = next(one for one in decisions(directory) if one.decision_id == "seen")
    assert live.features_at_us == 0
    assert seen["computed", "seen"].features_at_us > 0


def test_keys_are_stored_as_pseudonyms_where_entities_are(directory: Path) -> None:
    (directory / "entity.key").write_text("0123456789abcdef0123456789abcdef")
    (directory / "entity.key").chmod(0o600)
    privacy = '\n[privacy]\nentities = "hash"\nkey_file = "entity.key"\n'
    with start_server(directory, settings(SCORE + ACTION) + CONFIG + privacy) as server:
        with Client(server.address, timeout=PATIENT) as client:
            client.wait_ready()
            client.record_events([payment(number, card="shopper-card-77") for number in range(5)])
            answer = client.score(FRAUD, row(), keys={"card": "shopper-card-77"})
            assert answer.score == client.score(FRAUD, row(count_24h=5.0)).score
        server.stop()
    files = [path for path in directory.rglob("*") if path.is_file() and path.suffix in (".log", ".seg", "")]
    assert any(path.suffix == ".log" for path in files)
    assert not any(b"shopper-card-77" in path.read_bytes() for path in files)


def test_the_command_compares_a_log_with_the_offline_values(directory: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sent = [payment(number, card=f"card-{number % 3}", amount=10.0 + number) for number in range(9)]
    with start_server(directory, settings(SCORE + ACTION) + CONFIG) as server:
        with Client(server.address, timeout=PATIENT) as client:
            client.wait_ready()
            client.record_events(sent)
            context = {"amount": 50.0, "hour": 15.0}
            for number in range(3):
                client.select_action(
                    SELECT, context, keys={"card": f"card-{number}"}, request_id=f"d{number}"
                )
        server.stop()
    keys = {"id": [f"d{number}" for number in range(3)], "card": [f"card-{number}" for number in range(3)]}
    pq.write_table(pa.table(keys), directory / "keys.parquet")

    def compare(events: list[Event]) -> Any:
        columns = {
            "id": [event.id for event in events],
            "occurred_at": [event.occurred_at_us for event in events],
            "card": [event.keys["card"] for event in events],
            "terminal": [event.keys["terminal"] for event in events],
            "amount": [event.numbers["amount"] for event in events],
            "country": [event.texts["country"] for event in events],
        }
        pq.write_table(pa.table(columns), directory / "payments.parquet")
        return scorer_in_process(
            *("features", "parity", str(directory / "cards.json"), "--checkpoint", SELECT, "--json"),
            *("--log", str(directory / "decisions"), "--bundles", str(directory / "registry")),
            *("--events", f"payment={directory / 'payments.parquet'}"),
            *("--decisions", str(directory / "keys.parquet")),
        )

    equal = compare(sent)
    assert equal.returncode == 0, equal.stdout + equal.stderr
    compared = {one["feature"]: one["compared"] for one in json.loads(equal.stdout)["features"]}
    assert (compared["payments_1d"], compared["mean_1d"]) == (3, 3)
    lacks = compare(sent[:-1])
    assert lacks.returncode == 1, "an event that the files lack"
    differ = {one["feature"]: one["share"] for one in json.loads(lacks.stdout)["features"]}
    assert differ["payments_1d"] == pytest.approx(2 / 3)


def test_a_server_reads_feature_sets_from_toml(directory: Path) -> None:
    (directory / "cards.json").unlink()
    lines = ['name = "cards"', "version = 1", "[events.payment]", 'accept_late = "7d"']
    lines += ['entities = ["card", "terminal"]', 'numbers = ["amount"]', 'texts = ["country"]']
    for feature in SET["features"]:
        lines.append("[[features]]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in feature.items()]
    (directory / "cards.toml").write_text("\n".join(lines))
    config = CONFIG.replace("cards.json", "cards.toml")
    with start_server(directory, settings(SCORE) + config) as server:
        with Client(server.address, timeout=PATIENT) as client:
            client.wait_ready()
            client.record_events([payment(number) for number in range(5)])
            answer = client.score(FRAUD, row(), keys={"card": "card-1"})
            assert answer.served.features_defaulted == ""
            assert answer.score == client.score(FRAUD, row(count_24h=5.0)).score
        assert server.status()["feature_store"]["sets"] == ["cards@1"]
