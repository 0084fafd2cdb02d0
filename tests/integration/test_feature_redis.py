"""A server that reads computed features from a real Redis: slow, away, evicting, half empty, restarted."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import components
import pytest
from bundles import tiny_action_bundle, tiny_score_bundle
from certificates import Authority
from feeding import CANONICAL, feed_of, payment, write
from redis_server import RedisServer, SlowProxy
from servers import ACTION, SCORE, RunningServer, settings, start_server
from waiting import wait_until

from scorer.bundle import ComputedFeatures
from scorer.client import Client, Event, Health, PreconditionError
from scorer.errors import PositionMovedError
from scorer.registry import Registry

PATIENT = 30.0
FRAUD, SELECT = "fraud.checkout", "action.authorise"
BLOB = "scorer:cards@1:e:card:card-1"
KEYS = {"card": "card-1"}
pytestmark = pytest.mark.timeout(240)


def row(**stated: float) -> dict[str, float]:
    return {"amount": 50.0, "hour": 15.0, "distance": 3.0, **stated}


@pytest.fixture(scope="module")
def running() -> Iterator[RedisServer]:
    components.require("Redis")
    with RedisServer() as running:
        yield running


@pytest.fixture
def redis(running: RedisServer) -> RedisServer:
    """The server of the module, with five payments of one card."""
    running.command("FLUSHALL")
    write(feed_of(running.address), [payment(number) for number in range(5)])
    return running


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "cards.json").write_bytes(CANONICAL)
    registry = Registry(tmp_path / "registry")
    count = ComputedFeatures(CANONICAL, {"count_24h": "payments_1d"})
    both = ComputedFeatures(CANONICAL, {"count_24h": "payments_1d", "distance": "cards_7d"})
    tiny_score_bundle(tmp_path / "score", computed=count)
    tiny_action_bundle(tmp_path / "action", computed=both)
    registry.alias("fraud-checkout", "live", registry.push(tmp_path / "score"))
    registry.alias("action-authorise", "live", registry.push(tmp_path / "action"))
    return tmp_path


def config(address: str, redis: str = "", share: float = 1.0) -> str:
    # The SLA is long, so that only a test's own slowness is late.
    slow = SCORE + ACTION
    return (
        settings(slow)
        + f'\n[features]\nsource = "redis"\nsets = ["cards.json"]\nsla_share = {share}\n'
        + f'[features.redis]\naddress = "{address}"\n{redis}\n'
    )


def metric(server: RunningServer, name: str, **labels: str) -> float:
    """The value of a metric, 0 if it is not reported."""
    with urllib.request.urlopen(f"http://{server.serving['metrics']}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    wanted = {f'{key}="{value}"' for key, value in labels.items()}
    for line in lines:
        head, _, value = line.rpartition(" ")
        if head.partition("{")[0] == name and all(one in head for one in wanted):
            return float(value)
    return 0.0


def serving(directory: Path, address: str, redis: str = "", share: float = 1.0) -> Any:
    return start_server(directory, config(address, redis, share))


def connected(server: RunningServer) -> Client:
    client = Client(server.address, timeout=PATIENT)
    client.wait_ready()
    wait_until(lambda: metric(server, "scorer_feature_redis_connections") == 2, "connections", seconds=30)
    return client


def reason(client: Client, **keys: str) -> str:
    return client.score(FRAUD, row(), keys=keys or KEYS).served.features_defaulted


def eventually(client: Client, wanted: str) -> None:
    wait_until(lambda: reason(client) == wanted, f"features_defaulted {wanted!r}", seconds=30)


def test_values_of_redis_are_used_by_scores(directory: Path, redis: RedisServer) -> None:
    with serving(directory, redis.address) as server, connected(server) as client:
        computed = client.score(FRAUD, row(), keys=KEYS)
        stated = client.score(FRAUD, row(count_24h=5.0), keys=KEYS)
        assert (computed.score, computed.served.features_defaulted) == (stated.score, "")
        assert client.score(FRAUD, row(count_24h=0.0)).score != stated.score
        unknown = client.score(FRAUD, row(), keys={"card": "new"})
        assert unknown.score == client.score(FRAUD, row(count_24h=0.0)).score
        assert unknown.served.features_defaulted == ""
        assert client.score(FRAUD, row()).served.features_defaulted == "no_key"
        assert metric(server, "scorer_feature_redis_states_total", result="missing") == 1
        assert metric(server, "scorer_feature_redis_states_total", result="found") == 1
        assert metric(server, "scorer_feature_redis_reads_total", result="values") == 2
        store = server.status()["feature_store"]
        assert (store["sets"], store["state"]) == (["cards@1"], "ok")
        assert store["directory"] == f"redis {redis.address}"
        with pytest.raises(PreconditionError, match="reads features from Redis"):
            client.record_events([Event("payment", "x", 1, {"card": "a"})])
        assert server.stop() == 0


def test_a_state_that_cannot_be_used_gives_defaults_for_its_entity(
    directory: Path, redis: RedisServer
) -> None:
    both = {"card": "card-1", "terminal": "t1"}
    blob = redis.command("GET", BLOB)
    cases: list[tuple[bytes, str]] = [
        (blob[:-1] + bytes([blob[-1] ^ 1]), "corrupt"),
        (b"", "corrupt"),
        (_resealed(b"\x02" + blob[1:-4]), "version"),
        (_resealed(blob[:3] + bytes([blob[3] ^ 1]) + blob[4:-4]), "version"),
    ]
    with serving(directory, redis.address) as server, connected(server) as client:
        good = client.select_action(SELECT, {"amount": 50.0, "hour": 15.0}, keys=both)
        assert good.served.features_defaulted == ""
        for number, (damaged, result) in enumerate(cases):
            before = metric(server, "scorer_feature_redis_states_total", result=result)
            redis.command("SET", BLOB, damaged)
            answer = client.score(FRAUD, row(), keys=KEYS)
            assert answer.served.features_defaulted == "failed", number
            assert answer.score == client.score(FRAUD, row(count_24h=2.0)).score, "the declared default"
            assert metric(server, "scorer_feature_redis_states_total", result=result) == before + 1
        only_terminal = client.select_action(
            SELECT, {"amount": 50.0, "hour": 15.0, "count_24h": 5.0}, keys=both
        )
        assert only_terminal.served.features_defaulted == "", "the other entity has its state"


def test_an_empty_or_half_built_state_gives_defaults_and_not_zeros(
    directory: Path, redis: RedisServer
) -> None:
    with serving(directory, redis.address) as server, connected(server) as client:
        assert reason(client) == ""
        redis.command("FLUSHALL")
        assert reason(client) == "failed"
        feed = feed_of(redis.address)
        write(feed, [payment(1)], last=False)
        assert reason(client) == "failed", "the feed has not reached the end of its topic"
        write(feed, [payment(2)])
        assert reason(client) == ""
        assert metric(server, "scorer_feature_redis_reads_total", result="incomplete") == 2


def test_a_server_answers_with_defaults_while_redis_is_away(directory: Path) -> None:
    components.require("Redis")
    with RedisServer("appendonly yes", "appendfsync always") as redis:
        write(feed_of(redis.address), [payment(number) for number in range(5)])
        with serving(directory, redis.address) as server, connected(server) as client:
            good = client.score(FRAUD, row(), keys=KEYS)
            redis.kill()
            away = server.event("feature_redis_away")
            assert away["address"] == redis.address
            eventually(client, "failed")
            assert (
                client.score(FRAUD, row(), keys=KEYS).score == client.score(FRAUD, row(count_24h=2.0)).score
            )
            assert client.health() is Health.SERVING
            assert server.status()["feature_store"]["state"] != "ok"
            redis.start()
            eventually(client, "")
            assert client.score(FRAUD, row(), keys=KEYS).score == good.score, "no event was lost"
            assert metric(server, "scorer_feature_redis_disconnects_total") > 0


def test_a_server_starts_without_redis(directory: Path, redis: RedisServer) -> None:
    with SlowProxy(redis.port) as proxy:
        address = proxy.address
    with serving(directory, address) as server, Client(server.address, timeout=PATIENT) as client:
        client.wait_ready()
        assert reason(client) == "failed"
        assert metric(server, "scorer_feature_redis_reads_total", result="away") == 1


def test_a_slow_redis_gives_defaults_within_the_share_of_the_sla(directory: Path, redis: RedisServer) -> None:
    # The timeout is above the delay: the connection stays, and the read is late.
    with (
        SlowProxy(redis.port) as proxy,
        serving(directory, proxy.address, "timeout_ms = 20000\nhedge_ms = 0", 0.25) as server,
        connected(server) as client,
    ):
        assert reason(client) == ""
        proxy.delay = 3.0
        answer = client.score(FRAUD, row(), keys=KEYS)
        assert answer.served.features_defaulted == "late"
        proxy.delay = 0.0
        eventually(client, "")
        wait_until(
            lambda: metric(server, "scorer_feature_redis_in_flight") == 0, "the late replies", seconds=30
        )


def test_a_connection_without_replies_is_replaced(directory: Path, redis: RedisServer) -> None:
    with (
        SlowProxy(redis.port) as proxy,
        serving(directory, proxy.address, "timeout_ms = 100\nhedge_ms = 0\nmax_in_flight = 2") as server,
        connected(server) as client,
    ):
        proxy.delay = 5.0
        for _ in range(6):
            assert reason(client) in ("late", "failed")
        wait_until(
            lambda: metric(server, "scorer_feature_redis_disconnects_total") >= 2,
            "the end of both connections",
            seconds=30,
        )
        proxy.delay = 0.0
        eventually(client, "")
        assert metric(server, "scorer_feature_redis_in_flight") == 0


def test_a_slow_connection_is_hedged_by_the_other_within_the_limit(
    directory: Path, redis: RedisServer
) -> None:
    with (
        SlowProxy(redis.port) as proxy,
        serving(directory, proxy.address, "timeout_ms = 20000\nhedge_ms = 1\nhedge_share = 1.0") as server,
        connected(server) as client,
    ):
        proxy.slow_connections = 1
        proxy.delay = 5.0
        assert [reason(client) for _ in range(4)] == ["", "", "", ""]
        assert metric(server, "scorer_feature_redis_hedges_total", result="won") >= 1
    with (
        SlowProxy(redis.port) as proxy,
        serving(directory, proxy.address, "timeout_ms = 20000\nhedge_ms = 1\nhedge_share = 0.0") as server,
        connected(server) as client,
    ):
        proxy.slow_connections = 1
        proxy.delay = 5.0
        assert "late" in [reason(client) for _ in range(4)]
        assert metric(server, "scorer_feature_redis_hedges_total", result="sent") == 0
        assert metric(server, "scorer_feature_redis_hedges_total", result="refused") >= 1


def test_passwords_are_read_for_each_connection(directory: Path) -> None:
    components.require("Redis")
    with RedisServer("requirepass right") as redis:
        secret = directory / "redis.password"

        def write_secret(text: str) -> None:
            secret.write_text(text)
            secret.chmod(0o600)

        write_secret("wrong\n")
        with serving(directory, redis.address, 'password_file = "redis.password"') as server:
            refused = server.event("feature_redis_away")
            assert "AUTH" in refused["error"]
            assert "wrong" not in refused["error"].replace("WRONGPASS", "")
            with Client(server.address, timeout=PATIENT) as client:
                client.wait_ready()
                assert reason(client) == "failed"
                write_secret("right\n")
                feed = feed_of(redis.address, password_file=str(secret))
                write(feed, [payment(number) for number in range(5)])
                eventually(client, "")


def test_tls_verifies_the_server(directory: Path) -> None:
    components.require("Redis")
    authority, other = Authority(directory / "tls"), Authority(directory / "other", "other")
    authority.issue("server", ["127.0.0.1"])
    tls = directory / "tls"
    for part, name in (("ca", "ca.pem"), ("certificate", "server.pem"), ("key", "server.key")):
        assert (tls / name).exists(), f"{part}: {sorted(tls.iterdir())}"
    assert other
    with RedisServer(tls=tls) as redis:
        section = '[features.redis.tls]\nca = "{}/ca.pem"'
        write(feed_of(redis.address, tls={"ca": str(tls / "ca.pem")}), [payment(1)])
        with serving(directory, redis.address, section.format("tls")) as server, connected(server) as client:
            assert reason(client) == ""
        with serving(directory, redis.address, section.format("other")) as server:
            assert "certificate" in server.event("feature_redis_away")["error"]


def test_evictions_are_counted_and_reported(directory: Path) -> None:
    components.require("Redis")
    with RedisServer("maxmemory 3mb", "maxmemory-policy allkeys-lru") as redis:
        feed = feed_of(redis.address)
        assert feed.eviction_policy() == "allkeys-lru"
        number = 0
        while "evicted_keys:0" in redis.command("INFO", "stats").decode():
            cards = [payment(1000 * number + one, card=f"c{number}-{one}") for one in range(200)]
            number += 1
            assert number < 300
            try:
                assert set(write(feed, cards)) == {"new"}
            except PositionMovedError:
                # Redis can evict the position as well; the loop then ends, because a key was evicted.
                continue
        with serving(directory, redis.address) as server, connected(server) as client:
            report = server.event("feature_redis_evicting", seconds=30)
            assert report["evicted_keys"] > 0
            assert metric(server, "scorer_feature_redis_evicted_keys") > 0
            # An evicted entity reads as never seen, as one that the store in the process evicts.
            seen = {reason(client, card=f"c0-{one}") for one in range(20)}
            assert seen <= {"", "failed"}


def test_a_full_redis_that_does_not_evict_loses_no_event(directory: Path) -> None:
    components.require("Redis")
    from scorer.errors import FeedUnavailableError

    with RedisServer("maxmemory 3mb", "maxmemory-policy noeviction") as redis:
        feed, number = feed_of(redis.address), 0

        def fill() -> None:
            nonlocal number
            while number < 200:
                write(feed, [payment(1000 * number + one, card=f"c{number}-{one}") for one in range(200)])
                number += 1

        with pytest.raises(FeedUnavailableError, match="OOM"):
            fill()
        position = feed.position("events", 0)
        assert position is not None
        assert position[0] == 200 * number, "the position is that of the last write"
        redis.command("CONFIG", "SET", "maxmemory", "100mb")
        assert set(write(feed, [payment(10**6 + one) for one in range(10)])) == {"new"}


def _resealed(body: bytes) -> bytes:
    return body + _crc32c(body).to_bytes(4, "little")


def _crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
