"""Tests that a server stores no readable sensitive feature, and that a reader with the key gets all."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from urllib.request import urlopen

import pytest
from servers import ACTION, SCORE, settings, start_server

from scorer.client import Client
from scorer.log import BundleShelf, ReaderKey, generate_keys, scan, verify
from scorer.registry import Registry

# Values that occur in no other place; the test looks for them as float32, as float64 and in decimal.
MASKED, ENCRYPTED = 8675.3125, 1729.6875
CONTEXT = {"amount": 25.0, "hour": 13.0, "count_24h": MASKED, "distance": ENCRYPTED}
RULES = '[privacy]\nfeatures = { count_24h = "mask", distance = "encrypt" }\npublic_key_file = "reader.pub"\n'


def _marks() -> list[bytes]:
    return [
        mark
        for value in (MASKED, ENCRYPTED)
        for mark in (struct.pack("<f", value), struct.pack("<d", value), str(value).encode())
    ]


def test_a_sensitive_value_is_in_no_file_and_is_decrypted_with_the_key(
    tmp_path: Path, registry: Registry
) -> None:
    away = tmp_path / "away"
    away.mkdir()
    generate_keys(away / "reader.key", tmp_path / "reader.pub")
    with (
        start_server(tmp_path, settings(SCORE + ACTION) + RULES) as server,
        Client(server.address, timeout=30) as client,
    ):
        for number in range(50):
            entity = f"shopper-{number}"
            assert client.score("fraud.checkout", CONTEXT, entity=entity).logged
            assert client.select_action("action.authorise", CONTEXT, entity=entity).logged
        client.score_batch("fraud.checkout", [list(CONTEXT.values())] * 20)
        with urlopen(f"http://{server.serving['metrics']}/metrics", timeout=30) as reply:
            metrics = reply.read()
        assert b"scorer_features_unsealed_total 0" in metrics
        assert server.stop() == 0, server.transcript()
    outputs = [metrics, json.dumps(server.events).encode()]
    files = [path for path in (tmp_path / "decisions").rglob("*") if path.is_file()]
    files += [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    held = [*outputs, *(path.read_bytes() for path in files)]
    assert sum(map(len, held)) > 10_000
    for mark in _marks():
        assert not any(mark in one for one in held)
    assert not any("sensitive_features_unknown" in str(event) for event in server.events)

    log, key = tmp_path / "decisions", ReaderKey.from_file(away / "reader.key")
    closed = [entry.record for entry in scan(log, kinds={"decision"})]
    assert len(closed) == 120 and all(len(one.withheld) == 2 for one in closed)
    entries = scan(log, kinds={"decision"}, reader_key=key)
    opened = [entry.record for entry in entries]
    assert all(ENCRYPTED in one.features and len(one.withheld) == 1 for one in opened)
    assert not any(MASKED in one.features for one in opened)
    assert (entries.sealed.opened, entries.sealed.altered) == (120, 0)
    senders = {(one.sealed.encapsulated_key, one.sealed.number) for one in closed}
    assert len(senders) == 120, "no nonce is used twice"
    shelf = BundleShelf([tmp_path / "registry"], required=False)
    report = verify(log, shelf, reader_key=key)
    assert report.ok and report.withheld == 120, "a decision with a masked value cannot be repeated"


def test_a_log_with_encrypted_values_only_is_verified_with_the_key(
    tmp_path: Path, registry: Registry
) -> None:
    generate_keys(tmp_path / "reader.key", tmp_path / "reader.pub")
    rules = '[privacy]\nfeatures = { "*" = "encrypt" }\npublic_key_file = "reader.pub"\n'
    with (
        start_server(tmp_path, settings(SCORE + ACTION) + rules) as server,
        Client(server.address, timeout=30) as client,
    ):
        for _ in range(20):
            client.score("fraud.checkout", CONTEXT)
            client.select_action("action.authorise", CONTEXT)
        assert server.stop() == 0, server.transcript()
    shelf = BundleShelf([tmp_path / "registry"], required=False)
    report = verify(tmp_path / "decisions", shelf, reader_key=ReaderKey.from_file(tmp_path / "reader.key"))
    assert report.ok and (report.verified, report.withheld) == (40, 0)
    report = verify(tmp_path / "decisions", shelf)
    assert report.ok and (report.verified, report.withheld) == (0, 40)


@pytest.mark.usefixtures("registry")
def test_a_misspelt_name_is_reported_and_a_private_key_refused(tmp_path: Path) -> None:
    generate_keys(tmp_path / "reader.key", tmp_path / "reader.pub")
    rules = '[privacy]\nfeatures = { distnce = "mask" }\n'
    with start_server(tmp_path, settings(SCORE) + rules) as server:
        assert server.event("sensitive_features_unknown")["features"] == ["distnce"]
        assert server.stop() == 0, server.transcript()
    from servers import scorer

    (tmp_path / "scorer.toml").write_text(
        settings(SCORE) + '[privacy]\nfeatures = { distance = "encrypt" }\npublic_key_file = "reader.key"\n'
    )
    refused = scorer("serve", "--config", "scorer.toml", cwd=tmp_path)
    assert refused.returncode != 0 and "must not be on this machine" in refused.stderr
