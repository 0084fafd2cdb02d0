"""Tests of finding servers by a DNS name and in Kubernetes, the latter against a server of its API."""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from waiting import PATIENCE, wait_until

from scorer.errors import ScorerError
from scorer.release.discovery_settings import MOST, DiscoverySettings
from scorer.release.errors import UnreachableError
from scorer.release.fleet.discovery import Discovery, Finder, FoundServer
from scorer.release.fleet.dns import DnsName
from scorer.release.fleet.finders import finder_of
from scorer.release.fleet.slices import EndpointSlices
from scorer.release.settings import PlatformFile

# --- DNS ---


def named(**more: Any) -> DiscoverySettings:
    return DiscoverySettings(**{"name": "scorer", "dns": "scorer.internal:7701", "seconds": 0.1, **more})


def answers(*addresses: str) -> list[Any]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 7701)) for address in addresses]


def test_each_address_of_a_name_is_a_server() -> None:
    asked: list[tuple[str, int]] = []

    def resolve(host: str, port: int) -> list[Any]:
        asked.append((host, port))
        return answers("10.0.0.8", "10.0.0.7", "fd00::1", "10.0.0.7")

    found = DnsName(named(role="shadow"), resolve=resolve).servers()
    assert asked == [("scorer.internal", 7701)]
    assert [(one.name, one.control, one.role) for one in found] == [
        ("scorer-10.0.0.7", "10.0.0.7:7701", "shadow"),
        ("scorer-10.0.0.8", "10.0.0.8:7701", "shadow"),
        ("scorer-fd00--1", "[fd00::1]:7701", "shadow"),
    ]


def test_a_real_name_is_looked_up() -> None:
    assert "127.0.0.1:7701" in [one.control for one in DnsName(named(dns="localhost:7701")).servers()]
    with pytest.raises(UnreachableError, match="check the name"):
        DnsName(named(dns="no-such-name.invalid:7701")).servers()


def test_a_name_that_cannot_be_looked_up_keeps_its_servers() -> None:
    state: dict[str, Any] = {"found": ["10.0.0.1", "10.0.0.2"]}
    turns: queue.Queue[str] = queue.Queue()

    def resolve(host: str, port: int) -> list[Any]:
        found = state["found"]
        turns.put("fails" if found is None else " ".join(found))
        if found is None:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return answers(*found)

    def wait_for(what: str) -> None:
        while turns.get(timeout=PATIENCE) != what:
            pass

    settings = named()
    discovery = Discovery({"scorer": (settings, DnsName(settings, resolve=resolve))})
    assert discovery.servers() == []
    discovery.start()
    try:
        wait_until(lambda: len(discovery.servers()) == 2, "two servers")
        state["found"] = None
        wait_until(discovery.errors, "the failure to be shown")
        assert "Temporary failure in name resolution" in discovery.errors()["scorer"]
        assert "\n" not in discovery.errors()["scorer"]
        assert len(discovery.servers()) == 2
        state["found"] = ["10.0.0.2", "10.0.0.3"]
        wait_for("10.0.0.2 10.0.0.3")
        wait_until(lambda: not discovery.errors(), "the failure to be over")
        assert [one.control for one in discovery.servers()] == ["10.0.0.2:7701", "10.0.0.3:7701"]
    finally:
        discovery.stop()


class Given:
    """A finder that publishes what a test gives, or fails with it."""

    def __init__(self, *turns: Any) -> None:
        self.turns = list(turns)
        self.ended = threading.Event()

    def run(self, publish: Any, stopping: threading.Event) -> None:
        if not self.turns:
            self.ended.set()
            stopping.wait(PATIENCE)
            return
        turn = self.turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        publish(turn)


def discovered(finder: Given) -> Discovery:
    discovery = Discovery({"scorer": (named(), finder)})
    discovery.start()
    assert finder.ended.wait(PATIENCE)
    discovery.stop()
    return discovery


def test_too_many_servers_are_cut_and_reported() -> None:
    servers = [FoundServer(f"s-{at:05}", f"10.0.0.1:{at + 1}", "live", "DNS x") for at in range(MOST + 5)]
    found = discovered(Given(servers))
    assert len(found.servers()) == MOST
    assert f"{MOST + 5} servers were found" in found.errors()["scorer"]


def test_a_defect_of_a_finder_ends_nothing() -> None:
    server = FoundServer("s", "10.0.0.1:1", "live", "DNS x")
    found = discovered(Given([server], ZeroDivisionError("secret"), [server]))
    assert list(found.servers()) == [server]
    assert found.errors() == {}


# --- settings ---

CHECKPOINT = '[checkpoints."fraud.checkout"]\nalias = "fraud-checkout@live"\n'
BAD = [
    ('name = "a"', "exactly one of dns and service"),
    ('name = "a"\ndns = "b:1"\nservice = "c/d"', "exactly one of dns and service"),
    ('name = "a"\ndns = "scorer.internal"', "DNS name with a port"),
    ('name = "a"\ndns = "scorer.internal:99999"', "DNS name with a port"),
    ('name = "a"\ndns = "https://scorer.internal:1"', "DNS name with a port"),
    ('name = "a"\nservice = "scorer"', "service"),
    ('name = "a"\nservice = "b/c"\napi = "http://127.0.0.1:1"', "token in clear"),
    ('name = "a"\ndns = "b:1"\n[[discovery]]\nname = "a"\ndns = "c:1"', "two groups"),
]


@pytest.mark.parametrize(("text", "rule"), BAD, ids=[rule for _, rule in BAD])
def test_settings_that_find_nothing_are_rejected(text: str, rule: str) -> None:
    with pytest.raises(ScorerError, match=rule):
        PlatformFile.parse(f"[[discovery]]\n{text}\n{CHECKPOINT}")


def test_a_group_has_the_finder_of_its_source() -> None:
    text = '[[discovery]]\nname = "a"\ndns = "b:1"\n[[discovery]]\nname = "c"\nservice = "d/e"\n'
    groups = PlatformFile.parse(text + CHECKPOINT).discovery
    assert [type(finder_of(group)) for group in groups] == [DnsName, EndpointSlices]
    assert [group.source for group in groups] == ["DNS b:1", "service d/e"]


# --- Kubernetes ---


def endpoint(address: str, pod: str = "", **conditions: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"addresses": [address], "conditions": {"ready": True, **conditions}}
    return found | ({"targetRef": {"kind": "Pod", "name": pod}} if pod else {})


class Api:
    """The part of the Kubernetes API that lists and watches slices, over HTTP.

    Every change gets the next version. A watch sends the changes after its version, and 410 Gone if they were
    compacted. Pages of a list have two slices.
    """

    def __init__(self) -> None:
        self.slices: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.compacted = 0
        self.changes: list[tuple[int, str, dict[str, Any]]] = []
        self.requests: list[tuple[str, dict[str, str], str]] = []
        self.refuse: tuple[int, str] | None = None
        self.silent = False
        """Whether watches stay open and send nothing."""
        self.gone_pages = 0
        """Number of further pages that are answered by 410."""
        self.changed = threading.Condition()
        self.ending = False

    def put(self, name: str, endpoints: Sequence[Mapping[str, Any]] | None, **more: Any) -> None:
        with self.changed:
            kind = "MODIFIED" if name in self.slices else "ADDED"
            self.version += 1
            self.slices[name] = {
                "metadata": {"name": name, "resourceVersion": str(self.version)},
                "addressType": "IPv4",
                "ports": [{"name": "grpc", "port": 7700}, {"name": "control", "port": 7701}],
                "endpoints": endpoints,
                **more,
            }
            self._append(kind, self.slices[name])

    def delete(self, name: str) -> None:
        with self.changed:
            self.version += 1
            gone = self.slices.pop(name)
            gone["metadata"]["resourceVersion"] = str(self.version)
            self._append("DELETED", gone)

    def bookmark(self) -> None:
        with self.changed:
            self.version += 1
            self._append("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}})

    def fail_watches(self, status: Mapping[str, Any]) -> None:
        with self.changed:
            self._append("ERROR", dict(status))

    def compact(self) -> None:
        """Forget all changes so far, as etcd does."""
        with self.changed:
            self.version += 1
            self.compacted = self.version
            self.changes.clear()

    def watches(self) -> list[dict[str, str]]:
        return [asked for _, asked, _ in self.requests if "watch" in asked]

    def lists(self) -> list[dict[str, str]]:
        return [asked for _, asked, _ in self.requests if "watch" not in asked]

    def _append(self, kind: str, item: dict[str, Any]) -> None:
        self.changes.append((self.version, kind, json.loads(json.dumps(item))))
        self.changed.notify_all()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: Api

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = {key: values[0] for key, values in parse_qs(url.query).items()}
        api = self.api
        api.requests.append((url.path, asked, self.headers.get("authorization", "")))
        if api.refuse is not None:
            self._answer(api.refuse[0], {"kind": "Status", "message": api.refuse[1]})
        elif "watch" in asked:
            self._watch(asked)
        else:
            self._list(asked)

    def log_message(self, *_: Any) -> None:
        pass

    def _list(self, asked: Mapping[str, str]) -> None:
        api = self.api
        if "continue" in asked and api.gone_pages:
            api.gone_pages -= 1
            self._answer(410, {"kind": "Status", "code": 410, "message": "the token has expired"})
            return
        with api.changed:
            names = sorted(api.slices)
            begin = int(asked.get("continue", 0))
            items = [api.slices[name] for name in names[begin : begin + 2]]
            about = {"resourceVersion": str(api.version)}
            if begin + 2 < len(names):
                about["continue"] = str(begin + 2)
        self._answer(200, {"kind": "EndpointSliceList", "metadata": about, "items": items})

    def _watch(self, asked: Mapping[str, str]) -> None:
        api, at = self.api, int(asked["resourceVersion"])
        if at < api.compacted:
            self._answer(410, {"kind": "Status", "code": 410, "message": "too old resource version"})
            return
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        sent = 0
        with api.changed:
            while not api.ending:
                for version, kind, item in () if api.silent else api.changes[sent:]:
                    sent += 1
                    if version > at or kind == "ERROR":
                        line = json.dumps({"type": kind, "object": item}).encode() + b"\n"
                        try:
                            # In two parts: an event may be cut anywhere.
                            self.wfile.write(line[:7])
                            self.wfile.flush()
                            self.wfile.write(line[7:])
                            self.wfile.flush()
                        except OSError:
                            return
                    if kind == "ERROR":
                        api.changes.remove((version, kind, item))
                        return
                if not api.changed.wait(float(asked["timeoutSeconds"])):
                    return

    def _answer(self, code: int, document: Mapping[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(api: Api) -> Iterator[str]:
    handler = type("Bound", (Handler,), {"api": api})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        with api.changed:
            api.ending = True
            api.changed.notify_all()
        server.shutdown()
        thread.join(PATIENCE)
        server.server_close()


class Cluster:
    """An API, and a discovery that reads one service of it."""

    def __init__(self, url: str, api: Api, directory: Path, **more: Any) -> None:
        self.api = api
        self.token = directory / "token"
        self.token.write_text("first\n")
        # A token over plain HTTP is what the settings prevent; the test's API has no certificate.
        self.settings = DiscoverySettings(name="scorer", service="payments/scorer").model_copy(
            update={"api": url, "token_file": self.token, "ca_file": None}
        )
        self.finder: Finder = EndpointSlices(self.settings, **more)
        self.discovery = Discovery({"scorer": (self.settings, self.finder)})

    def names(self) -> list[str]:
        return [one.name for one in self.discovery.servers()]

    def wait_for(self, *names: str) -> None:
        wait_until(lambda: self.names() == sorted(names), f"servers {names}")


@contextmanager
def cluster(directory: Path, api: Api, **more: Any) -> Iterator[Cluster]:
    with serving(api) as url:
        one = Cluster(url, api, directory, **more)
        one.discovery.start()
        try:
            yield one
        finally:
            one.discovery.stop()


@pytest.fixture
def api() -> Api:
    one = Api()
    one.put("scorer-1", [endpoint("10.0.0.1", "scorer-0"), endpoint("10.0.0.2", "scorer-1")])
    return one


def test_the_slices_of_a_service_are_listed_page_by_page(tmp_path: Path, api: Api) -> None:
    api.put(
        "scorer-2",
        [
            endpoint("10.0.0.3"),
            endpoint("10.0.0.4", "scorer-3", ready=False),
            endpoint("10.0.0.5", "leaves", terminating=True),
            {"addresses": []},
        ],
    )
    api.put("scorer-3", [endpoint("10.0.0.6", "x")], ports=[{"name": "grpc", "port": 7700}])
    # The second family of addresses of a pod, and a slice without any field that may be absent.
    api.put("scorer-4", [endpoint("fd00::1", "scorer-1"), endpoint("fd00::9", "scorer-9")])
    api.put("scorer-5", None, ports=None)
    with cluster(tmp_path, api) as one:
        one.wait_for("scorer-0", "scorer-1", "scorer-10.0.0.3", "scorer-3", "scorer-9")
        controls = {server.name: server.control for server in one.discovery.servers()}
        assert controls["scorer-1"] == "10.0.0.2:7701"
        assert controls["scorer-9"] == "[fd00::9]:7701"
        assert len(api.lists()) == 3
        path, asked, authorization = api.requests[0]
        assert path == "/apis/discovery.k8s.io/v1/namespaces/payments/endpointslices"
        assert asked["labelSelector"] == "kubernetes.io/service-name=scorer"
        assert authorization == "Bearer first"


def test_changes_arrive_by_the_watch(tmp_path: Path, api: Api) -> None:
    with cluster(tmp_path, api) as one:
        one.wait_for("scorer-0", "scorer-1")
        api.put("scorer-2", [endpoint("10.0.0.9", "scorer-2")])
        one.wait_for("scorer-0", "scorer-1", "scorer-2")
        api.put("scorer-1", [endpoint("10.0.0.1", "scorer-0")])
        one.wait_for("scorer-0", "scorer-2")
        api.delete("scorer-2")
        one.wait_for("scorer-0")
        assert len(api.lists()) == 1
        assert api.watches()[0]["resourceVersion"] == "101"
        assert api.watches()[0]["allowWatchBookmarks"] == "true"


def test_a_watch_that_ends_continues_at_its_version(tmp_path: Path, api: Api) -> None:
    with cluster(tmp_path, api, watch_seconds=1) as one:
        one.wait_for("scorer-0", "scorer-1")
        wait_until(api.watches, "a watch")
        api.bookmark()
        wait_until(lambda: len(api.watches()) >= 2, "another watch")
        assert api.watches()[1]["resourceVersion"] == "102", "the bookmark's version"
        api.delete("scorer-1")
        one.wait_for()
        assert len(api.lists()) == 1


def test_a_version_that_is_gone_is_listed_again(tmp_path: Path, api: Api) -> None:
    with cluster(tmp_path, api, watch_seconds=1) as one:
        one.wait_for("scorer-0", "scorer-1")
        wait_until(api.watches, "a watch")
        # In the stream of a watch that is open.
        api.fail_watches({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
        wait_until(lambda: len(api.lists()) == 2, "another list")
        # As the answer to a watch: the changes before it were compacted while none was open.
        api.put("scorer-1", [endpoint("10.0.0.1", "scorer-0")])
        api.compact()
        wait_until(lambda: len(api.lists()) >= 3, "another list")
        one.wait_for("scorer-0")
        assert one.discovery.errors() == {}


def test_a_list_whose_continuation_is_gone_begins_again(tmp_path: Path, api: Api) -> None:
    for number in range(2, 5):
        api.put(f"scorer-{number}", [endpoint(f"10.0.1.{number}", f"scorer-{number}")])
    api.gone_pages = 1
    with cluster(tmp_path, api) as one:
        one.wait_for("scorer-0", "scorer-1", "scorer-2", "scorer-3", "scorer-4")
        assert [asked.get("continue") for asked in api.lists()] == [None, "2", None, "2"]


def test_a_watch_in_which_nothing_arrives_is_opened_again(tmp_path: Path, api: Api) -> None:
    with cluster(tmp_path, api, watch_seconds=60, stalled_seconds=0.3) as one:
        one.wait_for("scorer-0", "scorer-1")
        api.silent = True
        wait_until(api.watches, "a watch")
        api.delete("scorer-1")
        before = len(api.watches())
        wait_until(lambda: len(api.watches()) > before, "the stalled watch to be opened again")
        assert one.names() == ["scorer-0", "scorer-1"], "no change has arrived"
        api.silent = False
        # The change was not lost: the next watch begins before it.
        one.wait_for()
        assert len(api.lists()) == 1


def test_an_api_that_refuses_keeps_the_servers_and_is_called_again(tmp_path: Path, api: Api) -> None:
    with cluster(tmp_path, api, watch_seconds=1) as one:
        one.wait_for("scorer-0", "scorer-1")
        api.refuse = 403, "endpointslices is forbidden"
        wait_until(one.discovery.errors, "the refusal to be shown")
        error = one.discovery.errors()["scorer"]
        assert "403 (endpointslices is forbidden)" in error and "allow the account" in error
        assert one.names() == ["scorer-0", "scorer-1"]
        one.token.write_text("second\n")
        api.put("scorer-1", [endpoint("10.0.0.7", "scorer-7")])
        api.refuse = None
        one.wait_for("scorer-7")
        assert one.discovery.errors() == {}
        assert api.requests[-1][2] == "Bearer second", "the token is read for each call"


def test_an_answer_of_another_program_is_reported(tmp_path: Path) -> None:
    class Other(Handler):
        def do_GET(self) -> None:
            body = b"<html>welcome</html>"
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        one = Cluster(f"http://127.0.0.1:{server.server_address[1]}", Api(), tmp_path)
        with pytest.raises(UnreachableError, match="not a document of the Kubernetes API"):
            one.finder.run(lambda _: None, threading.Event())
        one.token.unlink()
        with pytest.raises(UnreachableError, match="set token_file"):
            one.finder.run(lambda _: None, threading.Event())
    finally:
        server.shutdown()
        thread.join(PATIENCE)
        server.server_close()
    with pytest.raises(UnreachableError):
        one.token.write_text("x")
        one.finder.run(lambda _: None, threading.Event())


# --- in the platform ---

PLATFORM = """
[platform]
database = "{database}"

[[fleet]]
name = "listed"
control = "10.0.0.1:7701"

[[discovery]]
name = "scorer"
dns = "scorer.internal:7701"

[checkpoints."fraud.checkout"]
alias = "fraud-checkout@live"

[checkpoints."action.authorise"]
alias = "action-authorise@live"
"""


def test_found_servers_are_managed_beside_those_of_the_list(
    tmp_path: Path, built_bundles: dict[str, Path]
) -> None:
    from platforms import World

    from scorer.release.errors import ConflictError

    world = World(tmp_path, built_bundles, settings=PLATFORM)
    try:
        finders: Any = world.platform._discovery
        given = [
            FoundServer("scorer-10.0.0.1", "10.0.0.1:7701", "live", "DNS scorer.internal:7701"),
            FoundServer("scorer-10.0.0.2", "10.0.0.2:7701", "live", "DNS scorer.internal:7701"),
        ]
        finders._found["scorer"] = tuple(given)
        for server in given:
            world.fleet.join(server.name)
        additions, admin = world.service.additions, world.actor("admin")
        additions.refresh()
        # The first address is that of a server of the list, which has precedence.
        assert [member.name for member in world.fleet.members] == ["listed", "scorer-10.0.0.2"]
        world.platform.tick()
        shown = {one.name: one for one in additions.servers(admin)}
        assert (shown["scorer-10.0.0.2"].found, shown["scorer-10.0.0.2"].declared) == (True, False)
        assert shown["scorer-10.0.0.2"].added_by == "DNS scorer.internal:7701"
        assert shown["scorer-10.0.0.2"].reachable
        assert (shown["listed"].found, shown["listed"].declared) == (False, True)
        view = world.service.checkpoints.view(admin, "fraud.checkout")
        assert {one.name: one.in_step for one in view.members} == {"listed": True, "scorer-10.0.0.2": True}
        with pytest.raises(ConflictError, match=r"was found by DNS scorer\.internal:7701"):
            additions.remove_server(admin, "scorer-10.0.0.2")
        finders._errors["scorer"] = "no answer"
        assert 'scorer_platform_discovery_failing{group="scorer"} 1' in world.platform.metrics()
        finders._found["scorer"] = ()
        additions.refresh()
        assert [member.name for member in world.fleet.members] == ["listed"]
        view = world.service.checkpoints.view(admin, "fraud.checkout")
        assert [one.name for one in view.members] == ["listed"]
    finally:
        world.close()
