"""A real server with payments, and the platform that manages it, for what drives pages.

::

    with shop.server(directory, bundle) as server, shop.payments(server):
        settings = shop.platform_toml(server, minutes=1)
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from bundles import FEATURES, rows
from servers import SCORE, RunningServer, settings, start_server

from scorer.registry import Registry
from scorer.release.access import Access
from scorer.release.model import Role
from scorer.v1 import scoring_pb2 as pb
from scorer.v1.scoring_pb2_grpc import ScoringServiceStub

# A TEST lasts seconds and a canary three seconds, because the sequence is tested and not the model.
_PLATFORM = """
[platform]
listen = "127.0.0.1:0"
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
minutes = {minutes}
stages = [{{ share = 0.5, minutes = 0.05 }}]
gates = [
  {{ metric = "exec_p50_us", against = "sla", success = "<= sla", min_rows = 20 }},
  {{ metric = "error_rate", success = "== 0", min_rows = 20 }},
  {{ metric = "parity_max_abs", success = "<= 1e-6", min_rows = 20 }},
]
"""


@contextmanager
def server(directory: Path, bundle: Path) -> Iterator[RunningServer]:
    """Run a server with the given live bundle."""
    registry = Registry(directory / "registry")
    registry.alias("fraud-checkout", "live", registry.push(bundle))
    with start_server(directory, settings(SCORE)) as running:
        yield running


def platform_toml(server: RunningServer, *, minutes: float = 0.1) -> str:
    """Return the settings of a platform that manages a server. `minutes` is the length of a TEST."""
    return _PLATFORM.format(control=server.control, minutes=minutes)


def sign_up(access: Access) -> dict[str, str]:
    """Create the admin root and two approvers of project fraud; return their tokens."""
    _, secret = access.bootstrap("root")
    root = access.authenticate(secret)
    access.create_project(root, "fraud", "Fraud at checkout")
    tokens = {"root": secret}
    for user in ("mia", "otto"):
        access.set_member(root, "fraud", user, Role.APPROVER)
        tokens[user] = access.create_token(root, user=user, label="test", role=Role.APPROVER)[1]
    return tokens


@contextmanager
def payments(server: RunningServer) -> Iterator[None]:
    """Send payments to the checkpoint, one after the other."""
    stop = threading.Event()
    stub, data = ScoringServiceStub(server.channel()), rows(500)

    def send() -> None:
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

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)
