"""Three real servers with mutual TLS, the routes to them, and payments that are made without a pause.

::

    with three_replicas(directory, bundles) as replicas, route("nginx", replicas) as to:
        with Traffic(to.client) as traffic:
            replicas.servers[0].kill()
            traffic.continues()                  # no call has failed
"""

from __future__ import annotations

import itertools
import sys
import threading
import traceback
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import components
from bundles import FEATURES, rows
from certificates import HOSTS, Authority, grants, server_tls
from real_server import free_port
from servers import RunningServer, settings, start_server
from waiting import PATIENCE, wait_until

from loadtests.balancers import Backend, balancer
from scorer.client import Client, RetryPolicy, SelectedAction
from scorer.credentials import ClientTls
from scorer.log import LogReader
from scorer.registry import Registry
from scorer.token_keys import add_key

FRAUD, AUTHORISE = "fraud.checkout", "action.authorise"
ROUTES: Final = ("list", "nginx", "haproxy")
THREADS: Final = 4
ROLES: Final = {
    "checkout": ["score", "select", "report_outcomes"],
    "balancer": ["score", "select", "report_outcomes"],
}
BEHIND_A_BALANCER: Final = (
    'trusted_networks = ["127.0.0.0/8"]\nmax_inflight_per_peer = 2048\nmax_connections_per_peer = 1024\n'
)
"""The settings of docs/scaling.md for servers behind a balancer."""
RETRIES: Final = RetryPolicy(max_tokens=100)
INPUTS: Final = [dict(zip(FEATURES, map(float, row), strict=True)) for row in rows(64)]


@dataclass
class Replicas:
    """Three servers on fixed ports, each with a registry of its own."""

    directory: Path
    stack: ExitStack
    servers: list[RunningServer] = field(default_factory=list)

    def start(self, place: int) -> None:
        """Start a replica, again on its port and with its log."""
        server = self.stack.enter_context(start_server(self.of(place)))
        self.servers[place : place + 1] = [server]

    def of(self, place: int) -> Path:
        return self.directory / f"replica-{place}"

    def registry(self, place: int) -> Registry:
        return Registry(self.of(place) / "registry")

    @property
    def addresses(self) -> list[str]:
        return [server.address for server in self.servers]

    def arrived(self, place: int) -> int:
        """Number of requests that reached a replica since it was started."""
        with urllib.request.urlopen(
            f"http://{self.servers[place].serving['metrics']}/metrics", timeout=PATIENCE
        ) as page:
            lines = page.read().decode().splitlines()
        return sum(
            int(float(line.rpartition(" ")[2]))
            for line in lines
            if line.startswith("scorer_requests_arrived_total")
        )

    def recorded_actions(self) -> set[tuple[str, str, int]]:
        """Decision id, bundle and action of every selection in a log of the replicas."""
        return {
            (record.decision.decision_id, record.decision.bundle.hex(), record.decision.action_index)
            for place in range(len(self.servers))
            for _, record in LogReader(self.of(place) / "decisions").records()
            if record.HasField("decision") and record.decision.checkpoint == AUTHORISE
        }

    def is_called_again(self, place: int) -> None:
        """Wait until a replica receives requests."""
        before = self.arrived(place)
        wait_until(lambda: self.arrived(place) > before + 20, f"requests at replica {place}")


@dataclass
class Traffic:
    """Payments, without a pause, on several threads: a score, a selection and mostly its outcome.

    Every fifth payment has no outcome. Three calls of each payment would reach three servers in turn, and a
    server could get only selections.
    """

    client: Callable[[], Client]
    actions: list[SelectedAction] = field(default_factory=list)
    bundles: set[str] = field(default_factory=set)
    failures: list[BaseException] = field(default_factory=list)
    retries: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def continues(self, count: int = 150) -> None:
        """Wait until further payments are complete, without a failure so far."""
        before = len(self.actions)
        wait_until(
            lambda: self.failures or len(self.actions) >= before + count, "payments", seconds=4 * PATIENCE
        )
        assert not self.failures, self.failures[:3]

    def ends_without_errors(self, replicas: Replicas) -> None:
        """End the traffic and the servers; check that every selection that a client received is recorded."""
        self.__exit__()
        assert not self.failures, self.failures[:3]
        for server in replicas.servers:
            assert server.stop() == 0, server.transcript()
        recorded = replicas.recorded_actions()
        received = {
            (one.decision_id, one.served.bundle.removeprefix("sha256:"), one.action_index)
            for one in self.actions
        }
        assert received <= recorded, sorted(received - recorded)[:3]

    def pay(self, thread: int) -> None:
        """Make payments until the traffic ends."""
        try:
            with self.client() as client:
                for number in itertools.count():
                    if self._stop.is_set():
                        break
                    values, payment = INPUTS[number % len(INPUTS)], f"payment-{thread}-{number}"
                    score = client.score(FRAUD, values, request_id=payment)
                    assert score.served.by_model
                    action = client.select_action(AUTHORISE, values, request_id=payment)
                    assert (action.served.by_model, action.logged) == (True, True)
                    if number % 5:
                        assert client.report_outcome(AUTHORISE, payment, "authorised", 1.0).proven
                    self.bundles.add(score.served.bundle)
                    self.actions.append(action)
                self.retries += client.stats().retries
        except BaseException as error:
            self.failures.append(error)

    def __enter__(self) -> Traffic:
        self._threads = [threading.Thread(target=self.pay, args=(number,)) for number in range(THREADS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, _: object = None, error: BaseException | None = None, *__: object) -> None:
        self._stop.set()
        if error is not None:
            # A wait for an effect of the traffic ends without success if the traffic has ended or is blocked.
            frames = sys._current_frames()
            calls = [
                "".join(traceback.format_stack(frames[thread.ident], limit=3))
                for thread in self._threads
                if thread.ident in frames
            ]
            error.add_note(f"{len(self.actions)} payments, failures {self.failures[:3]}\n{''.join(calls)}")
        for thread in self._threads:
            thread.join(PATIENCE)


def issue_certificates(directory: Path) -> Path:
    """Issue certificates of servers, checkout and balancer; the latter with the names of deploy/."""
    authority = Authority(directory)
    authority.issue("server", [*HOSTS, "scorer"])
    authority.issue("balancer", HOSTS)
    authority.issue("checkout")
    certificate, key, ca = (
        (directory / name).read_text() for name in ("balancer.pem", "balancer.key", "ca.pem")
    )
    deployed = directory / "balancer"
    deployed.mkdir()
    files = {"tls.crt": certificate, "tls.key": key, "tls.pem": certificate + key, "ca.crt": ca}
    for name, text in files.items():
        (deployed / name).write_text(text)
    return directory


@contextmanager
def three_replicas(directory: Path, bundles: Mapping[str, Path]) -> Iterator[Replicas]:
    """Run three servers with keys for decision tokens in common, and a registry each.

    Args:
        directory: An empty directory for all of their files.
        bundles: The fixture `built_bundles`; score-1 and action-1 are live.
    """
    add_key(directory / "token-keys.json")
    tls = issue_certificates(directory / "tls")
    with ExitStack() as stack:
        replicas = Replicas(directory, stack)
        for place in range(3):
            replicas.of(place).mkdir()
            registry = replicas.registry(place)
            registry.alias("fraud-checkout", "live", registry.push(bundles["score-1"]))
            registry.alias("action-authorise", "live", registry.push(bundles["action-1"]))
            text = settings(server=BEHIND_A_BALANCER)
            # The ports stay the same when a server is started again.
            for listener in ("listen", "metrics_listen"):
                text = text.replace(
                    f'\n{listener} = "127.0.0.1:0"', f'\n{listener} = "127.0.0.1:{free_port()}"'
                )
            keys = directory / "token-keys.json"
            text += f'\n[outcomes]\ntoken_keys = "{keys}"\n{server_tls(tls)}{grants(ROLES)}'
            (replicas.of(place) / "scorer.toml").write_text(text)
            replicas.start(place)
        yield replicas


@dataclass(frozen=True)
class Route:
    """How clients reach the replicas.

    Attributes:
        client: Returns a client, which calls through a balancer, or every replica by its address.
        mark_down: Leaves out the replicas at these places, and no others. Only nginx has to be told.
    """

    client: Callable[[], Client]
    mark_down: Callable[..., None] = lambda *_: None


@contextmanager
def route(name: str, replicas: Replicas) -> Iterator[Route]:
    """Make a route to the replicas; without the balancer's program, the test is skipped.

    Args:
        name: One of `ROUTES`. "list": the clients have a list of addresses.
        replicas: The servers.
    """
    if name != "list":
        components.require(name)
    tls = replicas.directory / "tls"
    credentials = ClientTls(tls / "ca.pem", tls / "checkout.pem", tls / "checkout.key").channel_credentials()

    def client(target: str | list[str]) -> Client:
        return Client(target, timeout=PATIENCE, retry=RETRIES, credentials=credentials)

    if name == "list":
        addresses = replicas.addresses
        yield Route(lambda: client(addresses))
        return
    backends = [Backend(server.address, server.serving["metrics"]) for server in replicas.servers]
    with balancer(name, backends, replicas.directory / name, certificates=tls / "balancer") as running:
        address = running.address
        yield Route(lambda: client(address), *([running.mark_down] if name == "nginx" else []))
