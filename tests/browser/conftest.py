"""A real server with traffic, and a platform that manages it, for tests that drive pages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from bundles import FEATURES, rows
from servers import SCORE, RunningServer, settings, start_server

from scorer.registry import Registry
from scorer.release.model import Role
from scorer.release.open import PlatformServices, open_service
from scorer.release.settings import PlatformFile
from scorer.v1 import scoring_pb2 as pb
from scorer.v1.scoring_pb2_grpc import ScoringServiceStub

# Six seconds in the shadow, three as a canary: what is measured is the way, not the model.
PLATFORM = """
[platform]
database = "platform.sqlite"
tick_ms = 50

[[fleet]]
name = "live-1"
control = "{control}"
log = "decisions"

[checkpoints."fraud.checkout"]
alias = "fraud-checkout@live"
p99_ms = 1000.0
sample = 1.0
minutes = 0.1
stages = [{{ share = 0.5, minutes = 0.05 }}]
gates = [
  {{ metric = "exec_p50_us", against = "sla", success = "<= sla", min_rows = 20 }},
  {{ metric = "error_rate", success = "== 0", min_rows = 20 }},
  {{ metric = "parity_max_abs", success = "<= 1e-6", min_rows = 20 }},
]
"""


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]
) -> Iterator[RunningServer]:
    directory = tmp_path_factory.mktemp("server")
    registry = Registry(directory / "registry")
    registry.alias("fraud-checkout", "live", registry.push(built_bundles["score-1"]))
    with start_server(directory, settings(SCORE)) as running:
        yield running


@pytest.fixture(scope="module")
def platform(server: RunningServer) -> Iterator[PlatformServices]:
    made = open_service(PlatformFile.parse(PLATFORM.format(control=server.control), base=server.directory))
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def tokens(platform: PlatformServices) -> dict[str, str]:
    access = platform.service.access
    _, secret = access.bootstrap("root")
    root = access.authenticate(secret)
    access.create_project(root, "fraud", "Fraud at checkout")
    made = {"root": secret}
    for user, role in (("mia", Role.APPROVER), ("otto", Role.APPROVER)):
        access.set_member(root, "fraud", user, role)
        made[user] = access.create_token(root, user=user, label="test", role=role)[1]
    return made


@pytest.fixture(scope="module")
def traffic(server: RunningServer) -> Iterator[None]:
    """Shoppers, one after the other, until the end."""
    stop = threading.Event()
    stub, data = ScoringServiceStub(server.channel()), rows(500)

    def shop() -> None:
        number = 0
        while not stop.wait(0.005):
            values = zip(FEATURES, data[number % 500].tolist(), strict=True)
            named = pb.NamedFeatures(features=[pb.Feature(name=name, number=value) for name, value in values])
            request = pb.ScoreRequest(request_id=f"pay-{number}", checkpoint="fraud.checkout", named=named)
            try:
                stub.Score(request, timeout=5)
            except grpc.RpcError:
                if stop.is_set():
                    return
                raise
            number += 1

    thread = threading.Thread(target=shop, daemon=True)
    thread.start()
    yield
    stop.set()
    thread.join(10)
