"""Test that three servers, one of them killed, are learned from as one server is: their logs, and a table.

The same requests and outcomes go to one real server and to three, in the same seconds of a clock that the
test sets. Outcomes reach random servers, some requests are decided again elsewhere, and one server is killed
with SIGKILL while it answers.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import components
import grpc
import numpy as np
import pytest
from bundles import ACTIONS, CREATED, FEATURES, rows, tiny_action_bundle
from lakes import lake_source, ship_logs
from servers import ACTION, RunningServer, settings, start_server
from waiting import PATIENCE

from scorer.client import Client, SelectedAction
from scorer.learn import experience_files
from scorer.learn import settings as learn_settings
from scorer.learn.experience import State
from scorer.learn.join.joining import Joined, join
from scorer.learn.training.fitting import fit
from scorer.learn.training.generation import Generation
from scorer.learn.training.tasks import read_task
from scorer.learn.training.trained import build_candidate
from scorer.log import BundleShelf
from scorer.log.source.directories import log_directories
from scorer.log.source.interface import DecisionSource
from scorer.registry import Registry
from scorer.token_keys import add_key
from scorer.v1 import scoring_pb2 as pb
from scorer.v1.scoring_pb2_grpc import ScoringServiceStub

POINT = "action.authorise"
COUNT, DELAY, KILLED_AT = 420, 15, 200
BEGIN = datetime(2026, 1, 5, 10, 0, 0, tzinfo=UTC)
AS_OF_MS = round((BEGIN + timedelta(days=3)).timestamp() * 1000)
LEARN = """
[join]
families = []
hours = 24.0
rows = 64
[train]
trees = 20
depth = 3
folds = 2
fewest = 300
tau = [0.0, 1.0]
compare = false
threads = 1
"""
OF_REPLICAS = {
    # Retries at another server, which one server answers from its memory.
    "repeated decision",
    "duplicate outcome",
    # What the kill left behind.
    "lagging log",
    "unfinished tail",
}
DATA = rows(COUNT, seed=5)
CHANCE = np.random.default_rng(6).random(COUNT)


@dataclass
class Fleet:
    """Servers that answer the same checkpoint, and their clock."""

    clock: Path
    servers: list[RunningServer]
    clients: list[Client]
    random: np.random.Generator
    second: int = 0
    answers: dict[int, SelectedAction] = field(default_factory=dict)

    def tick(self) -> None:
        """Set the clock of all servers to the next second."""
        self.second += 1
        # Replaced at once: a server must not read a file that is half written.
        following = self.clock.with_suffix(".next")
        following.write_text(f"{BEGIN + timedelta(seconds=self.second):%Y-%m-%d %H:%M:%S}\n")
        following.replace(self.clock)

    def any(self) -> Client:
        return self.clients[int(self.random.integers(len(self.clients)))]

    def decide(self, number: int) -> None:
        """Ask for an action; every seventh request is sent again, as after a reply that was lost."""
        for _ in range(2 if number % 7 == 0 else 1):
            self.tick()
            answer = self.any().select_action(
                POINT,
                features(number),
                request_id=f"order-{number}",
                entity=f"shopper-{number % 97}",
                timeout=20,
            )
            assert answer.logged
            first = self.answers.setdefault(number, answer)
            assert (answer.action, answer.propensity) == (first.action, first.propensity)

    def report(self, number: int) -> None:
        """Report the outcome, every eleventh one twice."""
        answer = self.answers[number]
        chance = 0.5 + 0.35 * (answer.action_index // 3) - 0.3 * (answer.action_index % 3 == 2)
        for _ in range(2 if number % 11 == 0 else 1):
            self.tick()
            ack = self.any().report_outcome(
                POINT,
                answer.decision_id,
                "authorised",
                float(CHANCE[number] < chance),
                decision_token=answer.decision_token,
            )
            assert ack.proven

    def kill_while_it_answers(self, number: int) -> None:
        """Kill a server that is deciding a request. The caller sends the request elsewhere."""
        victim = self.servers[1]
        named = [pb.Feature(name=name, number=value) for name, value in features(number).items()]
        request = pb.SelectActionRequest(
            checkpoint=POINT,
            request_id=f"order-{number}",
            entity=f"shopper-{number % 97}",
            named=pb.NamedFeatures(features=named),
        )
        pending = ScoringServiceStub(victim.channel()).SelectAction.future(request, timeout=PATIENCE)
        victim.kill()
        # The reply may have left before; the caller that does not see it sends the request again.
        with suppress(grpc.RpcError):
            pending.result(timeout=PATIENCE)
        del self.servers[1], self.clients[1]


def features(number: int) -> dict[str, float]:
    return dict(zip(FEATURES, DATA[number].tolist(), strict=True))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry whose live bundle explores evenly, keys of tokens, and the library that fakes the clock."""
    components.faketime_library()
    place = tmp_path_factory.mktemp("one-learner")
    policy = {"rule": "epsilon_greedy", "epsilon": 0.9, "floor": 0.5, "salt": "0" * 32}
    tiny_action_bundle(place / "live", policy=policy)
    registry = Registry(place / "registry")
    registry.alias("action-authorise", "live", registry.push(place / "live"))
    add_key(place / "token-keys.json")
    return place


@contextmanager
def fleet(place: Path, folder: Path, count: int) -> Iterator[Fleet]:
    """Run servers that share the registry, the keys and the clock."""
    folder.mkdir()
    clock = folder / "clock"
    clock.write_text(f"{BEGIN:%Y-%m-%d %H:%M:%S}\n")
    fake = {
        "LD_PRELOAD": str(components.faketime_library()),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "TZ": "UTC",
    }
    text = settings(
        f'{ACTION}durability = "written"\n[outcomes]\ntoken_keys = "{place / "token-keys.json"}"\n',
        registry=f'path = "{place / "registry"}"',
    )
    with ExitStack() as stack:
        servers, clients = [], []
        for number in range(count):
            (folder / f"server-{number}").mkdir()
            server = stack.enter_context(start_server(folder / f"server-{number}", text, env=fake))
            servers.append(server)
            clients.append(stack.enter_context(Client(server.address, timeout=30)))
        yield Fleet(clock, servers, clients, np.random.default_rng(8))
        for server in servers:
            assert server.stop() == 0, server.transcript()


def shop(one: Fleet, logs: list[Path], shelf: BundleShelf, cache: Path) -> None:
    """Send all requests and outcomes; ship and join once in the middle, while the servers write."""
    for number in range(COUNT + DELAY):
        if number == KILLED_AT:
            joined(log_directories(logs), shelf, cache)
            joined(shipped(logs, cache), shelf, cache / "of-table")
            if len(one.servers) > 1:
                one.tick()
                one.kill_while_it_answers(number)
                one.second -= 1
        if number < COUNT:
            one.decide(number)
        if number >= DELAY and number % 10:
            one.report(number - DELAY)


def joined(source: DecisionSource, shelf: BundleShelf, cache: Path | None = None) -> Joined:
    plan = learn_settings.parse(LEARN).join
    return join(source, shelf, plan, as_of_ms=AS_OF_MS, checkpoint=POINT, cache=cache)


def shipped(logs: list[Path], cache: Path) -> DecisionSource:
    """The tables that hold what the logs hold now."""
    lake = cache.with_name(f"{cache.name}-lake")
    ship_logs({path.parent.name: path for path in logs}, lake, records=50)
    return lake_source(lake)


def candidate(found: Joined, place: Path, output: Path) -> Any:
    """Train the next generation; its provenance is left out."""
    plan = learn_settings.parse(LEARN).train
    before = Generation.of_bundle(place / "live")
    trained = fit(read_task(place / "live"), found.experience, plan, before, data_digest="sha256:" + "0" * 64)
    return build_candidate(trained, output, "same", created_at=CREATED)


@pytest.mark.timeout(300)
def test_three_servers_of_which_one_is_killed_teach_what_one_server_teaches(
    place: Path, tmp_path: Path
) -> None:
    shelf = BundleShelf([place / "live"])
    found: dict[int, Joined] = {}
    for count in (1, 3):
        folder, cache = tmp_path / f"fleet-{count}", tmp_path / f"cache-{count}"
        logs = [folder / f"server-{number}" / "decisions" for number in range(count)]
        with fleet(place, folder, count) as one:
            shop(one, logs, shelf, cache)
        found[count] = joined(log_directories(logs), shelf)
        experience_files.write(found[count].experience, tmp_path / f"{count}.parquet")
        stored = joined(log_directories(logs), shelf, cache)
        assert stored.experience.digest() == found[count].experience.digest(), "read on is read whole"
        assert stored.findings == found[count].findings
        for kept in (None, cache / "of-table"):
            of_table = joined(shipped(logs, cache), shelf, kept)
            experience_files.write(of_table.experience, tmp_path / f"{count}-table.parquet")
            written = (tmp_path / f"{count}-table.parquet").read_bytes()
            assert written == (tmp_path / f"{count}.parquet").read_bytes()
    alone, together = found[1], found[3]

    # Nothing that was acknowledged is lost, and every outcome is found, wherever it was reported.
    assert len(together.experience) == COUNT
    settled = int((together.experience.state == State.SETTLED).sum())
    assert settled == sum(1 for number in range(COUNT) if (number + DELAY) % 10)
    assert (tmp_path / "3.parquet").read_bytes() == (tmp_path / "1.parquet").read_bytes()

    def findings(of: Joined) -> dict[str, tuple[int, tuple[str, ...]]]:
        return {one.name: (one.count, one.examples) for one in of.findings if one.name not in OF_REPLICAS}

    assert findings(together) == findings(alone)
    again = {one.name: one.count for one in together.findings}
    assert again["repeated decision"] > COUNT // 7 // 3, "retries were decided by other servers"
    assert "conflicting outcomes" not in again and "token of another answer" not in again

    candidates = [candidate(of, place, tmp_path / f"candidate-{count}") for count, of in found.items()]
    assert candidates[0].digest == candidates[1].digest
    assert len({ACTIONS[action] for action in together.experience.action.tolist()}) == len(ACTIONS)

    # The machine of the killed server is gone: what was read of its log is used, and it is named.
    shutil.rmtree(logs[1])
    after = joined(log_directories(logs), shelf, cache)
    assert after.experience.digest() == alone.experience.digest()
    [gone] = [one for one in after.findings if one.name == "unreadable log"]
    assert gone.count == 1 and gone.examples[0].startswith(f"{logs[1]}: ")
