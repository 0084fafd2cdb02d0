"""Tests that the costs of a decision are measured on what they name, with small amounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests import costs
from loadtests.control_traffic import change, measure, status
from loadtests.openloop import Load, Method
from loadtests.scaling import SplitServer
from scorer.client.testing import FakeServer
from scorer.loadtest.ratesearch import RateWindow
from scorer.v1 import scoring_pb2 as pb


def test_the_platforms_rounds_read_every_server() -> None:
    found = measure(5, rounds=2)
    assert found.tick_seconds == 0.5, "the default of platform.tick_ms"
    assert found.calls_per_second == pytest.approx(5 / max(0.5, found.round_seconds))
    assert (found.status_bytes, found.change_bytes) == (status().ByteSize(), change().ByteSize())
    assert found.processor_seconds > 0


def test_a_relay_counts_the_bytes_of_requests_and_replies() -> None:
    request = pb.ScoreRequest(checkpoint="fraud.checkout", named=pb.NamedFeatures())
    with FakeServer() as server:
        load = Load(
            target=server.target,
            methods=[
                Method(
                    name="score",
                    path="/scorer.v1.ScoringService/Score",
                    requests=[request.SerializeToString()],
                    reply="score",
                )
            ],
        )
        sent, received = costs.wire_bytes(load, rate=50.0, seconds=0.5)
    # The message, its five bytes of gRPC framing, and the frames and header fields of HTTP/2.
    assert 5 + request.ByteSize() < sent < 5 + request.ByteSize() + 400
    assert 5 < received < 600


def test_shipping_and_joining_are_measured_with_real_logs(tmp_path: Path) -> None:
    ship_us, log_bytes, table_bytes = costs.shipping(tmp_path / "ship", 2_000)
    assert ship_us > 0
    assert 200 < log_bytes < 1_000
    assert 0 < table_bytes < log_bytes * 2
    # It checks that every decision was joined with its outcome.
    assert costs.joining(tmp_path / "join", 1_000) > 0


def test_training_is_measured_per_row_and_tree() -> None:
    assert 0 < costs.training(2_000, trees=3) < 1e6


def test_the_windows_of_several_servers_are_one_window() -> None:
    def window(rate: float, seconds: float) -> RateWindow:
        p99 = {"slow": 9.0, "fast": 1.0}[names.pop()]
        return RateWindow(rate=rate, p99_ms=p99, failed=p99 / 100, answered=rate, lag_us=p99, busy=0.1)

    class Part:
        def window(self, rate: float, seconds: float) -> RateWindow:
            return window(rate, seconds)

    names = ["slow", "fast"]
    found = SplitServer([Part(), Part()]).window(100.0, 1.0)  # type: ignore[list-item]
    assert (found.rate, found.p99_ms, found.answered, found.lag_us) == (100.0, 9.0, 100.0, 9.0)
    assert found.failed == pytest.approx(0.05)
