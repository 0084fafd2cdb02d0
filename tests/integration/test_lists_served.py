"""Tests of external lists on a real server: versions, refusals, restarts, records and signatures."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundles import tiny_action_bundle, tiny_score_bundle
from mlflow_server import start_mlflow
from servers import ACTION, SCORE, RunningServer, environment, scorer, settings, start_server
from waiting import wait_until

from scorer.bundle.rules import BundleRules, RuleList
from scorer.bundle.signing import new_key, sign
from scorer.client import Client
from scorer.errors import RegistryError, UnknownReferenceError
from scorer.registry import Registry, lists, open_registry
from scorer.registry.listprune import plan_pruning, prune

PATIENT = 20.0

CHECKOUT = """
name = "checkout"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "listed"
when = 'int(amount) in list("amounts")'
decision = "decline"
"""

EXEMPTIONS = """
name = "checkout"

[[rules]]
id = "listed"
when = 'int(amount) in list("amounts")'
remove = { exemption = ["tra"] }
source = "agreement"
"""

EXTERNAL = {"amounts": RuleList(None, "int", external=True)}
LOG = 'dir = "decisions"\n'


def publish_bundles(directory: Path, given: dict[str, RuleList] = EXTERNAL) -> Registry:
    registry = Registry(directory / "registry")
    tiny_score_bundle(directory / "score", rules=BundleRules(CHECKOUT, given))
    tiny_action_bundle(directory / "action", rules=BundleRules(EXEMPTIONS, EXTERNAL))
    registry.alias("fraud-checkout", "live", registry.push(directory / "score"))
    registry.alias("action-authorise", "live", registry.push(directory / "action"))
    return registry


def put(directory: Path, *elements: int, **options: Any) -> lists.ListVersion:
    file = directory / "amounts.txt"
    file.write_text("".join(f"{element}\n" for element in elements))
    return lists.put(Registry(directory / "registry"), "amounts", file, kind="int", **options)[0]


def row(amount: float) -> dict[str, float]:
    return {"amount": amount, "hour": 15.0, "count_24h": 0.0, "distance": 1.0}


def fired(client: Client, amount: float) -> list[str]:
    rules = client.score("fraud.checkout", row(amount)).rules
    assert rules is not None
    return [rule.id for rule in rules.fired]


def in_use(server: RunningServer, version: int) -> dict[str, Any]:
    """Wait until a version is in use, and return the state of the list."""

    def find() -> dict[str, Any] | None:
        (found,) = server.status()["lists"]
        return found if int(found.get("version", 0)) == version else None

    return wait_until(find, f"version {version} of the list")


def metrics(server: RunningServer) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{server.serving['metrics']}/metrics", timeout=PATIENT) as reply:
        text = reply.read().decode()
    found = re.findall(r"^(scorer_list\S*(?:\{.*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_versions_are_followed_by_two_bundles_and_recorded(tmp_path: Path) -> None:
    publish_bundles(tmp_path)
    put(tmp_path, 60, 70)
    with start_server(tmp_path, settings(SCORE + ACTION, log=LOG)) as server:
        with Client(server.address, timeout=PATIENT) as client:
            client.wait_ready()
            in_use(server, 1)
            assert fired(client, 60) == ["listed"] and fired(client, 80) == []
            eligible = client.select_action("action.authorise", row(60))
            assert eligible.rules is not None and [rule.id for rule in eligible.rules.fired] == ["listed"]
            put(tmp_path, 70, 80)
            state = in_use(server, 2)
            assert fired(client, 60) == [] and fired(client, 80) == ["listed"]
            assert len(state["bundles"]) == 2 and state["elements"] == "2" and state["unfit"] == []
            eligible = client.select_action("action.authorise", row(60))
            assert eligible.rules is not None and eligible.rules.fired == ()
            # Two bundles with the same salt share one set.
            seen = metrics(server)
            assert seen['scorer_list_version{list="amounts"}'] == 2
            assert seen['scorer_list_elements{list="amounts"}'] == 2
            assert seen['scorer_list_bytes{list="amounts"}'] == 32
            assert 0 <= seen['scorer_list_age_seconds{list="amounts"}'] < 3600
            assert seen['scorer_list_loads_total{list="amounts"}'] == 2
        event = server.event("list_followed", list="amounts", version=2)
        assert event["previous"] == 1
        shown = server.cli("status")
        assert re.search(r"amounts +2 +2 ", shown.stdout), shown.stdout
        assert server.stop() == 0
    verified = scorer("log", "verify", "--log", "decisions", "--bundles", "registry", "--json", cwd=tmp_path)
    report = json.loads(verified.stdout)
    assert report["ok"] and report["verified"] == 6 and report["missing_lists"] == {}, verified.stdout
    # Without the versions, the decisions cannot be verified. They are not reported as mismatches.
    first = Registry(tmp_path / "registry")
    old = lists.find_version(first, "amounts", 1)
    shutil.rmtree(tmp_path / "registry" / "bundles" / old.digest.removeprefix("sha256:"))
    verified = scorer("log", "verify", "--log", "decisions", "--bundles", "registry", "--json", cwd=tmp_path)
    report = json.loads(verified.stdout)
    assert not report["ok"] and report["mismatched"] == 0 and report["verified"] == 3
    assert report["missing_lists"] == {f"amounts version 1 ({old.digest})": 3}


def test_a_wrong_version_leaves_the_one_in_use_also_after_a_restart(tmp_path: Path) -> None:
    registry = publish_bundles(tmp_path)
    good = put(tmp_path, 60, 70)
    with start_server(tmp_path, settings(SCORE, log=LOG)) as server:
        with Client(server.address, timeout=PATIENT) as client:
            client.wait_ready()
            in_use(server, 1)
            newer = put(tmp_path, 80, 90, 100)
            in_use(server, 2)
            # The alias moves back: an older version is refused, because a rollback is a new version.
            registry.alias("amounts", "list", good.digest)
            event = server.event("list_not_followed", list="amounts")
            assert "version 1 is older than version 2" in event["reason"], event
            assert fired(client, 80) == ["listed"] and fired(client, 60) == []
            assert "older than version 2" in server.cli("status").stdout
            registry.alias("amounts", "list", newer.digest)
            wait_until(lambda: server.status()["lists"][0]["error"] == "", "the refusal ends")
            # A file that was altered after its publication.
            broken = put(tmp_path, 110, 120)
            in_use(server, 3)
            third = tmp_path / "registry" / "bundles" / broken.digest.removeprefix("sha256:") / "elements.txt"
            assert third.read_text() == "110\n120\n"
            file = tmp_path / "amounts.txt"
            file.write_text("1\n2\n")
            made = publish_broken(registry, file)
            event = server.event("list_not_followed", digest=made)
            assert "elements.txt" in event["reason"], event
            assert fired(client, 110) == ["listed"]
            assert metrics(server)['scorer_list_loads_refused_total{list="amounts",reason="version"}'] >= 1
            assert metrics(server)['scorer_list_loads_refused_total{list="amounts",reason="content"}'] >= 1
        server.kill()
    # Without the registry, the server has the last version that it used.
    (tmp_path / "registry").rename(tmp_path / "gone")
    started = start_server(tmp_path, settings(SCORE, log=LOG))
    with started as server, Client(server.address, timeout=PATIENT) as client:
        client.wait_ready()
        assert fired(client, 110) == ["listed"] and fired(client, 80) == []
        assert server.status()["lists"][0]["version"] == "3"


def publish_broken(registry: Registry, file: Path) -> str:
    """Publish a version whose file differs from the one that its manifest states."""

    def keep(directory: Path) -> str:
        elements = directory / "elements.txt"
        elements.chmod(0o644)
        elements.write_text("3\n4\n")
        return str(json.loads((directory / "manifest.json").read_text())["digest"])

    unchecked = Registry(registry.path, verify=keep)
    return lists.put(unchecked, "amounts", file, kind="int")[0].digest


def test_lists_that_are_not_published_are_errors_and_initial_files_count(tmp_path: Path) -> None:
    initial = {"amounts": RuleList(b"60\n", "int", external=True, minimum_version=2)}
    publish_bundles(tmp_path, initial)
    with start_server(tmp_path, settings(SCORE + ACTION, log=LOG)) as server:
        with Client(server.address, timeout=PATIENT) as client:
            client.wait_ready()
            event = server.event("list_not_followed", list="amounts")
            assert "scorer lists put amounts FILE" in event["reason"]
            assert fired(client, 60) == ["listed"], "the bundle's own file"
            rules = client.select_action("action.authorise", row(60)).rules
            assert rules is not None and rules.fired == () and rules.errors == 1
            put(tmp_path, 70)
            state = in_use(server, 1)
            assert len(state["unfit"]) == 1
            assert fired(client, 70) == [] and fired(client, 60) == ["listed"], "version 2 is the oldest"
            rules = client.select_action("action.authorise", row(70)).rules
            assert rules is not None and len(rules.fired) == 1
            put(tmp_path, 80)
            in_use(server, 2)
            assert fired(client, 80) == ["listed"] and fired(client, 60) == []
        assert server.stop() == 0
    verified = scorer("log", "verify", "--log", "decisions", "--bundles", "registry", "--json", cwd=tmp_path)
    assert json.loads(verified.stdout)["ok"], verified.stdout


def test_versions_are_signed_like_bundles(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    new_key(tmp_path / "release.key", tmp_path / "keys" / "release.pem")
    new_key(tmp_path / "other.key", tmp_path / "other.pem")
    for make, name, rules in (
        (tiny_score_bundle, "score", CHECKOUT),
        (tiny_action_bundle, "action", EXEMPTIONS),
    ):
        make(tmp_path / name, rules=BundleRules(rules, EXTERNAL))
        sign(tmp_path / name, [tmp_path / "release.key"])
    registry = Registry(tmp_path / "registry")
    registry.alias("fraud-checkout", "live", registry.push(tmp_path / "score"))
    put(tmp_path, 60, keys=[str(tmp_path / "release.key")])
    toml = '[bundles]\ntrusted_keys = ["keys"]\n' + settings(SCORE)
    with start_server(tmp_path, toml) as server, Client(server.address, timeout=PATIENT) as client:
        client.wait_ready()
        in_use(server, 1)
        for keys in ([], [str(tmp_path / "other.key")]):
            refused = put(tmp_path, 70 + len(keys), keys=keys)
            event = server.event("list_not_followed", digest=refused.digest)
            assert "sign" in event["reason"], event
        assert fired(client, 60) == ["listed"] and fired(client, 70) == []
        reason = 'scorer_list_loads_refused_total{list="amounts",reason="signature"}'
        assert metrics(server)[reason] == 2
        published = put(tmp_path, 80, keys=[str(tmp_path / "release.key")])
        in_use(server, published.version)
        assert fired(client, 80) == ["listed"]


def test_versions_are_followed_on_an_mlflow_server(tmp_path: Path) -> None:
    tiny_score_bundle(tmp_path / "score", rules=BundleRules(CHECKOUT, EXTERNAL))
    file = tmp_path / "amounts.txt"
    (tmp_path / "mlflow").mkdir()
    with start_mlflow(tmp_path / "mlflow") as mlflow:
        registry = open_registry(mlflow.location)
        registry.alias("fraud-checkout", "live", registry.push(tmp_path / "score"))
        file.write_text("60\n")
        assert lists.put(registry, "amounts", file, kind="int")[0].version == 1
        toml = settings(SCORE, registry=f'url = "{mlflow.location}"')
        with start_server(tmp_path, toml) as server, Client(server.address, timeout=PATIENT) as client:
            client.wait_ready()
            in_use(server, 1)
            file.write_text("70\n")
            assert lists.put(registry, "amounts", file)[0].version == 2
            in_use(server, 2)
            assert fired(client, 70) == ["listed"] and fired(client, 60) == []
        assert [one.version for one in lists.published(registry, "amounts")] == [2, 1]
        assert lists.names(registry) == ["amounts"]
        old = lists.find_version(registry, "amounts", 1)
        with pytest.raises(RegistryError, match="is in use by amounts@list"):
            registry.remove_list(lists.find_version(registry, "amounts", 2).digest)
        prune(registry, plan_pruning(registry, "amounts", 1, {}))
        for known in (registry, open_registry(mlflow.location)):
            assert [one.version for one in lists.published(known, "amounts")] == [2]
            with pytest.raises(UnknownReferenceError):
                known.resolve(old.digest)
        stored = list((tmp_path / "mlflow").rglob("elements.txt"))
        assert [one.read_text() for one in stored] == ["70\n"]


def test_the_version_that_a_server_uses_is_not_removed(tmp_path: Path) -> None:
    publish_bundles(tmp_path)
    for element in (60, 70):
        put(tmp_path, element)
    # The server polls the registry at its start and then not for an hour.
    toml = settings(SCORE, log=LOG).replace("poll_ms = 20", "poll_ms = 3600000")
    with start_server(tmp_path, toml) as server:
        in_use(server, 2)
        for element in (80, 90):
            put(tmp_path, element)

        def pruned(*more: str) -> str:
            done = scorer(
                "lists", "prune", "amounts", "--keep", "1", *more, "--registry", "registry", cwd=tmp_path
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        listed = pruned("--server", server.control)
        assert f"in use at {server.control}" in listed and "2 versions" in listed
        found = Registry(tmp_path / "registry")
        assert [one.version for one in lists.published(found, "amounts")] == [4, 3, 2, 1]
        pruned("--server", server.control, "--apply")
        assert [one.version for one in lists.published(found, "amounts")] == [4, 2]
        assert server.stop() == 0


KILLED = """
import os, signal, sys
from pathlib import Path
from scorer.registry import Registry, lists

registry = Registry(sys.argv[1])
if sys.argv[3] == "before the pointer":
    registry.alias = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
else:
    from scorer.registry import files
    files.commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
lists.put(registry, "amounts", Path(sys.argv[2]), kind="int")
"""


@pytest.mark.parametrize("moment", ["before the pointer", "before the commit"])
def test_a_killed_publication_leaves_the_version_before_it(tmp_path: Path, moment: str) -> None:
    registry = Registry(tmp_path / "registry")
    before = put(tmp_path, 60)
    file = tmp_path / "more.txt"
    file.write_text("70\n80\n")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(registry.path), str(file), moment],
        env=environment(TMPDIR=str(tmp_path)),
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert lists.newest(registry, "amounts") == before
    after = lists.put(registry, "amounts", file, kind="int")[0]
    assert (after.version, after.elements) == (2, 2)
    assert [one.version for one in lists.published(registry, "amounts")] == [2, 1]


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., str]:
    def run(*arguments: str, fails: bool = False) -> str:
        done = scorer("lists", *arguments, "--registry", "registry", cwd=tmp_path)
        assert (done.returncode != 0) is fails, done.stderr
        return done.stderr if fails else done.stdout

    return run


def test_the_commands_publish_show_and_compare(tmp_path: Path, command: Callable[..., str]) -> None:
    file = tmp_path / "cards.txt"
    file.write_text("a\nb\n\nc\nd\n")
    assert "cards: version 1 with 4 elements (the first version)" in command("put", "cards", "cards.txt")
    assert "nothing was published" in command("put", "cards", "cards.txt")
    file.write_text("a\n")
    assert "--allow-shrink" in command("put", "cards", "cards.txt", fails=True)
    assert "was version 1 with 4" in command("put", "cards", "cards.txt", "--allow-shrink")
    assert "of type string" in command("put", "cards", "cards.txt", "--type", "int", fails=True)
    file.write_text("a\nx\n")
    compared = command("diff", "cards", "--file", "cards.txt")
    assert compared == "1 added: x\n0 removed\n"
    assert command("diff", "cards").startswith("0 added\n3 removed: b, c, d")
    assert command("diff", "cards", "2", "1").startswith("3 added: b, c, d\n0 removed")
    shown = json.loads(command("show", "cards", "--json"))
    assert [(one["version"], one["elements"]) for one in shown] == [(2, 1), (1, 4)]
    assert re.search(r"cards +2 +string +1 ", command("show"))
    file.write_text("1\nx\n")
    assert "line 2 of its file is not an int" in command(
        "put", "numbers", "cards.txt", "--type", "int", fails=True
    )
    assert "Cards" in command("put", "Cards", "cards.txt", fails=True)
    assert "has no elements" in command("put", "empty", os.devnull, fails=True)
    stored = scorer("registry", "list", "--registry", "registry", cwd=tmp_path)
    assert re.search(r"cards +list ", stored.stdout), stored.stdout
