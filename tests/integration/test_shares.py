"""Test that a principal which changes its name per request gets the rate of one, over real connections."""

from __future__ import annotations

import itertools
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest
from bundles import FEATURES
from certificates import Authority, grants, server_tls
from servers import RunningServer, settings, start_server

from scorer import credentials
from scorer.registry import Registry
from scorer.v1 import scoring_pb2 as pb
from scorer.v1 import scoring_pb2_grpc

FRAUD = "fraud.checkout"
ROLES = {name: ["score", "report_outcomes"] for name in ("checkout", "greedy")}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.of_fleet(tmp_path / "tls", ROLES)


def metrics(server: RunningServer) -> str:
    with urllib.request.urlopen(f"http://{server.serving['metrics']}/metrics") as page:
        return str(page.read().decode())


def series(text: str) -> int:
    return sum(not line.startswith("#") for line in text.splitlines())


class Caller:
    """Sends requests of one principal, each with another caller name, and counts their results."""

    def __init__(self, server: RunningServer, authority: Authority, principal: str) -> None:
        self.codes: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._principal = principal
        self._channel = credentials.channel(server.address, authority.client(principal))
        self.stub = scoring_pb2_grpc.ScoringServiceStub(self._channel)

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(self, method: Any, request: Any) -> str:
        """Call once; return the code's name."""
        name = ("x-caller", f"{self._principal}-{next(self._numbers)}")
        try:
            method(request, timeout=30, metadata=(name,))
            code = "OK"
        except grpc.RpcError as error:
            code = error.code().name
        with self._lock:
            self.codes[code] += 1
        return code


@pytest.mark.fault_case(9)
def test_caller_names_multiply_neither_the_rate_nor_the_time_series(
    tmp_path: Path, authority: Authority, registry: Registry
) -> None:
    limit = 20
    section = f"[outcomes]\nper_caller_second = {limit}\n" + server_tls(authority.directory) + grants(ROLES)
    with (
        start_server(tmp_path, settings() + section) as server,
        Caller(server, authority, "greedy") as greedy,
        Caller(server, authority, "checkout") as honest,
    ):

        def report(caller: Caller) -> str:
            return caller.call(caller.stub.ReportOutcome, request)

        request = pb.ReportOutcomeRequest(checkpoint=FRAUD, decision_id="unknown", kind="fraud", value=1.0)
        for caller in (honest, greedy):
            assert caller.call(caller.stub.Score, single()) == "OK"
        report(honest)
        before = metrics(server)
        began = time.monotonic()
        for _ in range(400):
            report(greedy)
        seconds = time.monotonic() - began
        limited = greedy.codes["RESOURCE_EXHAUSTED"]
        # The first second's requests are accepted at once, and later requests at the rate.
        assert 400 - limited <= limit * (seconds + 1) + 1
        assert limited > 0
        assert report(honest) != "RESOURCE_EXHAUSTED", "another principal's rate is untouched"
        after = metrics(server)
    assert "greedy-" not in after
    assert series(after) <= series(before) + 8, "400 names create no time series"


def single() -> pb.ScoreRequest:
    named = [pb.Feature(name=name, number=1.5) for name in FEATURES]
    return pb.ScoreRequest(checkpoint=FRAUD, named=pb.NamedFeatures(features=named))
