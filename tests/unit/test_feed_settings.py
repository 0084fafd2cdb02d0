"""Settings of feeds and of the source of features: what is refused, and what reaches the data plane."""

from __future__ import annotations

from pathlib import Path

import pytest

from scorer.config.features import FeatureSettings, feature_config
from scorer.config.problems import InvalidSettingsError
from scorer.config.source import SettingsSource
from scorer.feed import settings as feed
from scorer.feed.metrics import FeedMetrics
from scorer.feed.settings import FeedSettings
from scorer.feed.targets import event_of
from scorer.v1.scoring_pb2 import Event


def load(text: str, directory: Path) -> FeedSettings:
    path = directory / "feed.toml"
    path.write_text(text)
    return feed.load(path)


def test_the_example_is_valid_once_it_has_a_target(tmp_path: Path) -> None:
    text = feed.example()
    with pytest.raises(InvalidSettingsError, match="no target is set"):
        load(text, tmp_path)
    settings = load(text.replace("addresses = []", 'addresses = ["127.0.0.1:7700"]'), tmp_path)
    assert settings.servers.addresses == ["127.0.0.1:7700"]
    assert settings.kafka.format == "protobuf"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[redis]\naddress = "127.0.0.1:6379"\n', "address and set go together"),
        ('[redis]\naddress = "redis:6379"\nset = "cards.json"\n', "is another machine"),
        ('[feed]\nmetrics_listen = "0.0.0.0:1"\n[servers]\naddresses = ["a:1"]\n', "other machines"),
        ("[feed]\nbatch = 1001\n", "1000"),
        ('[kafka]\nformat = "avro"\n', "json"),
    ],
)
def test_wrong_settings_of_a_feed_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingsError, match=message):
        load(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('source = "redis"\n', "go together"),
        ('[redis]\naddress = "127.0.0.1:6379"\n', "go together"),
        (
            'source = "redis"\nsets = ["a.json"]\ndirectory = "x"\n[redis]\naddress = "127.0.0.1:1"\n',
            'belongs to source = "store"',
        ),
        ('source = "redis"\n[redis]\naddress = "redis:6379"\n', "is another machine"),
    ],
)
def test_wrong_sources_of_features_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidSettingsError, match=message):
        SettingsSource(text, where="test").validate(FeatureSettings)


def test_the_data_plane_receives_the_connection(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    text = (
        'source = "redis"\nsets = ["a.json"]\n[redis]\naddress = "redis:6379"\nuser = "scorer"\n'
        'password_file = "secret"\nhedge_ms = 3\n[redis.tls]\nca = "ca.pem"\n'
    )
    settings = SettingsSource(text, where="test", base=tmp_path).validate(FeatureSettings)
    config = feature_config(settings, lambda path: {})
    assert config is not None
    assert config["directory"] is None
    assert config["redis"] == {
        "address": "redis:6379",
        "tls": {"ca": str(tmp_path / "ca.pem"), "certificate": None, "key": None, "server_name": None},
        "user": "scorer",
        "password_file": str(tmp_path / "secret"),
        "database": 0,
        "prefix": "scorer:",
        "timeout_ms": 250,
        "connections": 2,
        "max_in_flight": 1024,
        "hedge_ms": 3,
        "hedge_share": 0.05,
    }


@pytest.mark.parametrize("message", [b"\xff", b"{", b"[]", b'{"unknown": 1}', b"\xff\xfe"])
def test_messages_that_are_no_events_are_recognised(message: bytes) -> None:
    assert event_of(message, "json") is None
    if message.startswith(b"\xff"):
        assert event_of(message, "protobuf") is None


def test_events_are_read_in_both_forms() -> None:
    event = Event(kind="payment", id="a", keys={"card": "b"}, occurred_at_us=5)
    assert event_of(event.SerializeToString(), "protobuf") == event
    text = b'{"kind": "payment", "id": "a", "keys": {"card": "b"}, "occurred_at_us": "5"}'
    assert event_of(text, "json") == event


def test_metrics_are_reported_from_the_start() -> None:
    metrics = FeedMetrics()
    metrics.start("redis")
    metrics.add_events("redis", {"new": 2, "late": 1})
    text = metrics.text()
    assert 'scorer_feed_events_total{target="redis",result="late"} 1\n' in text
    assert 'scorer_feed_events_total{target="redis",result="new"} 2\n' in text
    assert 'scorer_feed_retries_total{target="redis"} 0\n' in text
    assert "# TYPE scorer_feed_complete gauge\n" in text
