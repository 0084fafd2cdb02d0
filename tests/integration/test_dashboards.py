"""A real Prometheus scrapes real servers: every panel of the dashboards and every rule has data."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import components
import grpc
import pytest
from bundles import rows
from certificates import Authority, grants, server_tls
from feeding import FeedProcess, feeding, write_feed_settings
from prometheus_server import WINDOW, PrometheusServer, prometheus
from servers import ACTION, SCORE, RunningServer, settings, start_server
from shipping import ShipperProcess, shipper, write_settings
from waiting import wait_until

from scorer.client import Client
from scorer.registry import Registry
from scorer.v1 import control_pb2, control_pb2_grpc

ROOT = Path(__file__).resolve().parents[2]
RULES = [ROOT / "deploy/prometheus/recording.rules.yml", ROOT / "deploy/prometheus/alerts.rules.yml"]
FRAUD, CHOICE = "fraud.checkout", "action.authorise"
NOWHERE = "127.0.0.1:1"
"""A port at which nothing listens. The metrics of a connection exist without the other side."""
PATIENCE = 90.0


@contextmanager
def traffic(server: RunningServer) -> Iterator[None]:
    """Send requests until the block ends."""
    stopped = threading.Event()
    failures: list[Exception] = []

    def send() -> None:
        try:
            with Client(server.address, timeout=30) as client:
                number = 0
                while not stopped.wait(0.01):
                    number += 1
                    for row in rows(4):
                        client.score(FRAUD, row, timeout=30)
                    client.select_action(CHOICE, rows(1)[0], request_id=f"a{number}", timeout=30)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(60)
    assert not failures, failures


def listener_of(process: ShipperProcess | FeedProcess) -> str:
    """Return the address of a process's metrics."""
    found = wait_until(lambda: re.search(r"metrics: http://(\S+)/metrics", process.text), "a listener")
    assert found is not None
    return found.group(1)


@pytest.fixture
def world(tmp_path: Path, registry: Registry) -> Iterator[PrometheusServer]:
    """Servers with everything that has metrics, under load, and a Prometheus that scrapes them."""
    components.require("Prometheus")
    shared = f'path = "{registry.path}"\n'
    write_feed_settings(
        tmp_path,
        f'[feed]\nmetrics_listen = "127.0.0.1:0"\n[kafka]\nservers = "{NOWHERE}"\n'
        f'[redis]\naddress = "{NOWHERE}"\nset = "cards.json"\n',
    )
    secure = tmp_path / "secure"
    secure.mkdir()
    roles = {"checkout": ["score", "describe"]}
    authority = Authority.of_fleet(tmp_path / "tls", roles)
    with ExitStack() as stack:
        live = stack.enter_context(
            start_server(
                tmp_path,
                settings(SCORE + ACTION, server=f'shadow_pool = "{NOWHERE}"\n', registry=shared)
                + f'[tracing]\nendpoint = "{NOWHERE}"\nratio = 1.0\n'
                + '[features]\nsource = "redis"\nsets = ["cards.json"]\n'
                + f'[features.redis]\naddress = "{NOWHERE}"\n',
            )
        )
        protected = stack.enter_context(
            start_server(secure, settings(registry=shared) + server_tls(authority.directory) + grants(roles))
        )
        ship = write_settings(
            tmp_path, delta={"url": "lake"}, ship={"metrics_listen": "127.0.0.1:0", "flush_seconds": 1.0}
        )
        shipping = stack.enter_context(shipper(tmp_path, "--config", str(ship)))
        feed = stack.enter_context(feeding(tmp_path, "--config", "feed.toml"))
        with grpc.insecure_channel(live.control) as channel:
            lane = control_pb2.Lane(
                name="cr-000001", bundle=registry.resolve("fraud-checkout@live").digest, sample=1.0
            )
            control_pb2_grpc.ControlServiceStub(channel).SetObservers(
                control_pb2.SetObserversRequest(checkpoint=FRAUD, lanes=[lane], reason="test"), timeout=30
            )
        stack.enter_context(traffic(live))
        targets = {
            "scorer": str(live.serving["metrics"]),
            "scorer-secure": str(protected.serving["metrics"]),
            "scorer-ship": listener_of(shipping),
            "scorer-feed": listener_of(feed),
        }
        yield stack.enter_context(prometheus(tmp_path / "prometheus", targets, RULES))


@pytest.mark.timeout(600)
def test_every_panel_and_every_rule_has_data(world: PrometheusServer) -> None:
    empty = []
    panels = 0
    for path in sorted((ROOT / "deploy/grafana").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                panels += 1
                expr = target["expr"].replace("$checkpoint", ".*").replace("$__rate_interval", WINDOW)
                assert "$" not in expr, f"{expr}: a variable that the test does not know"
                try:
                    found = wait_until(lambda expr=expr: world.query(expr), seconds=PATIENCE)
                except AssertionError:
                    empty.append(f"{path.stem}, {panel['title']}: {expr}")
                    continue
                for series in found:
                    missing = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) - set(
                        series["metric"]
                    )
                    assert not missing, f"{panel['title']}: a series has no label {missing}"
    assert panels > 60
    assert not empty, "\n".join(empty)

    # A value that is not NaN, where there is traffic.
    for expr in (
        f'histogram_quantile(0.99, sum by (le) (rate(scorer_answer_seconds_bucket{{by="model"}}[{WINDOW}])))',
        f"sum(rate(scorer_decisions_total[{WINDOW}]))",
        "sum(scorer_ship_records_total)",
    ):
        assert wait_until(
            lambda expr=expr: float(world.query(expr)[0]["value"][1]) > 0, expr, seconds=PATIENCE
        )
    exemplars = wait_until(
        lambda: world.exemplars("scorer_request_seconds_bucket"), "exemplars", seconds=PATIENCE
    )
    assert all(re.fullmatch("[0-9a-f]{32}", one["labels"]["trace_id"]) for one in exemplars)

    rules = world.rules()
    for rule in rules:
        for name in set(re.findall(r"(?<!:)\bscorer_[a-z0-9_]+", rule["query"])):
            assert world.query(f"count({name})"), f"{rule['name']} names {name}, which nothing reports"
        if rule["type"] == "recording":
            wait_until(
                lambda rule=rule: world.query(rule["name"]), f"{rule['name']} has no data", seconds=PATIENCE
            )

    def evaluated() -> bool:
        return all(rule["health"] != "unknown" for rule in world.rules())

    wait_until(evaluated, "the first evaluation of every rule", seconds=PATIENCE)
    wrong = [(rule["name"], rule.get("lastError")) for rule in world.rules() if rule["health"] != "ok"]
    assert not wrong, wrong
