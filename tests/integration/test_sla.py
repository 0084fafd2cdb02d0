"""Tests of a checkpoint's SLA, from the settings file to the data plane."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from servers import settings

from scorer import bridge, config, errors
from scorer.control.dataplane import server_config

pytestmark = pytest.mark.alone

FRAUD = """
[checkpoints."fraud.checkout"]
kind = "score"
alias = "fraud-checkout@live"
p99_ms = 250.0
tier = 1
mode = "enforce"
fallback = {{ decision = "review", score = 0.5 }}
caps = {{ max_count = 5, max_single_amount = 100.0, amount_feature = "{amount}", \
on_cap = {{ decision = "decline", score = 1.0 }} }}
""".replace("\\\n", "")


def start(directory: Path, amount: str) -> bridge.Server:
    file = directory / "scorer.toml"
    file.write_text(settings(FRAUD.format(amount=amount)))
    return bridge.Server(json.dumps(server_config(config.load(file))))


def serve(server: bridge.Server, bundle: Path) -> None:
    digest = json.loads((bundle / "manifest.json").read_text())["digest"]
    server.load(bundle, digest)
    lanes = [{"name": "live", "bundle": digest, "share": 1.0}]
    server.swap(json.dumps({"version": 1, "checkpoints": {"fraud.checkout": lanes}}))


def test_the_sla_settings_take_effect(tmp_path: Path, built_bundles: dict[str, Path]) -> None:
    server = start(tmp_path, "amount")
    try:
        serve(server, built_bundles["score-1"])
        address = json.loads(server.addresses())["metrics"]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
            metrics = page.read().decode()
        for sample in (
            'scorer_shed_total{checkpoint="fraud.checkout",reason="wait"} 0',
            'scorer_exposure_cap_hits_total{checkpoint="fraud.checkout",cap="count"} 0',
            'scorer_late_results_total{checkpoint="fraud.checkout"} 0',
            "scorer_pressure 0",
        ):
            assert sample in metrics, sample
    finally:
        server.drain(5.0)


def test_an_error_names_the_amount_feature_that_the_bundle_lacks(
    tmp_path: Path, built_bundles: dict[str, Path]
) -> None:
    server = start(tmp_path, "price")
    try:
        with pytest.raises(errors.SwapError, match='amount_feature "price" is not a feature'):
            serve(server, built_bundles["score-1"])
    finally:
        server.drain(5.0)
