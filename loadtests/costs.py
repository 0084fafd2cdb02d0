"""Costs per decision that do not depend on the number of servers: wire, shipping, join and training."""

from __future__ import annotations

import random
import resource
import socket
import subprocess
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from loadtests import ship
from loadtests.openloop import Load

ACTIONS: Final = 16
CONTEXT: Final = 24
_HOUR_US: Final = 3_600_000_000


@dataclass
class Counted:
    """Bytes that passed through a relay: requests and replies, with the headers of HTTP/2."""

    address: str
    requests: int = 0
    replies: int = 0


@contextmanager
def relay(target: str) -> Iterator[Counted]:
    """Run a TCP relay to a server that counts what passes, for bytes per request. It is not fast.

    Args:
        target: "host:port".
    """
    host, _, port = target.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0))
    counted = Counted(f"127.0.0.1:{listener.getsockname()[1]}")
    open_sockets: list[socket.socket] = [listener]

    def copy(source: socket.socket, sink: socket.socket, count: Callable[[int], None]) -> None:
        try:
            while data := source.recv(1 << 16):
                count(len(data))
                sink.sendall(data)
        except OSError:
            return

    def add_request(size: int) -> None:
        counted.requests += size

    def add_reply(size: int) -> None:
        counted.replies += size

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection((host, int(port)))
            open_sockets.extend((client, server))
            for arguments in ((client, server, add_request), (server, client, add_reply)):
                threading.Thread(target=copy, args=arguments, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield counted
    finally:
        for one in open_sockets:
            one.close()


def wire_bytes(load: Load, rate: float = 200.0, seconds: float = 3.0) -> tuple[float, float]:
    """Return the bytes of a request and of its reply, with headers, on connections that are kept."""
    with relay(load.target) as counted:
        through = Load(target=counted.address, methods=load.methods, connections=1)
        report = through.run(rate, seconds, warmup_seconds=0.0)
    return counted.requests / report.requests, counted.replies / report.requests


def shipping(work: Path, decisions: int) -> tuple[float, float, float]:
    """Ship a log to a Delta table.

    Args:
        work: An empty directory.
        decisions: Number of decisions, with 40 features each.

    Returns:
        Processor time per decision in µs, with the start of the process; bytes per decision in the log; bytes
        per decision in the files of the table.
    """
    (work / "decisions").mkdir(parents=True)
    writer, chance = ship.LogWriter(work / "decisions"), random.Random(1)
    while writer.sequence < decisions:
        writer.append(ship.decisions(min(10_000, decisions - writer.sequence), 0, chance))
    writer.close()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ship.command(Namespace(kafka="", actions=0), work, "--once")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used / decisions * 1e6, _size(work / "decisions") / decisions, _size(work / "lake") / decisions


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def joining(work: Path, decisions: int) -> float:
    """Join selections with their outcomes; return the processor time per decision in µs.

    Args:
        work: An empty directory.
        decisions: Number of selections, each with an outcome.
    """
    from scorer.learn import settings as learn_settings
    from scorer.learn.join.joining import join
    from scorer.log import BundleShelf
    from scorer.log.source.directories import log_directories

    work.mkdir(parents=True, exist_ok=True)
    digest, fingerprint, actions = _action_bundle(work / "bundle")
    (work / "decisions").mkdir()
    writer, chance = ship.LogWriter(work / "decisions"), random.Random(2)
    now_us = time.time_ns() // 1000
    while writer.sequence < 2 * decisions:
        writer.append(_selections(5_000, digest, fingerprint, actions, now_us - _HOUR_US, chance))
    writer.close()
    plan = learn_settings.parse("[join]\nfamilies = []\nhours = 24.0\n").join
    began = time.process_time()
    found = join(
        log_directories([work / "decisions"]),
        BundleShelf([work / "bundle"]),
        plan,
        as_of_ms=now_us // 1000,
        checkpoint="action.authorise",
    )
    used = time.process_time() - began
    if len(found.experience) < decisions:
        raise RuntimeError(f"{len(found.experience)} of {decisions} decisions were joined: {found.findings}")
    return used / len(found.experience) * 1e6


def _selections(
    count: int, digest: bytes, fingerprint: int, actions: list[str], at_us: int, chance: random.Random
) -> list[bytes]:
    from scorer.log.proof import KNOWN
    from scorer.v1.log_pb2 import DecisionRecord, LogRecord, OutcomeRecord

    records = []
    for _ in range(count):
        name, taken = f"{chance.getrandbits(128):032x}", chance.randrange(len(actions))
        decision = DecisionRecord(
            decision_id=name,
            checkpoint="action.authorise",
            lane="live",
            bundle=digest,
            decided_at_us=at_us,
            entity=name[:16],
            features=[chance.random() for _ in range(CONTEXT)],
            schema_fingerprint=fingerprint,
            pmf=[1 / len(actions)] * len(actions),
            action_index=taken,
            action=actions[taken],
            propensity=1 / len(actions),
        )
        outcome = OutcomeRecord(
            checkpoint="action.authorise",
            decision_id=name,
            kind="authorised",
            value=1.0,
            received_at_us=at_us + 1_000_000,
            proof=KNOWN,
        )
        records += [LogRecord(decision=decision), LogRecord(outcome=outcome)]
    return [record.SerializeToString() for record in records]


def _action_bundle(directory: Path) -> tuple[bytes, int, list[str]]:
    """Build a small bundle with `CONTEXT` features; return its digest, schema fingerprint and actions."""
    import xgboost as xgb

    from scorer.bundle import Action, Feature, Lineage, PolicySpec, SchemaFile, build_action_bundle, inspect

    names = [f"f{number}" for number in range(CONTEXT)]
    random_ = np.random.default_rng(3)
    rows = random_.random((2000, CONTEXT + 1), dtype=np.float32)
    matrix = xgb.DMatrix(
        rows, (rows[:, 0] > random_.random(2000)).astype(np.float32), feature_names=[*names, "a"]
    )
    model = xgb.train({"objective": "binary:logistic", "max_depth": 3, "nthread": 1}, matrix, 5)
    build_action_bundle(
        directory,
        name="action-authorise",
        model=model,
        schema=SchemaFile(
            features=[Feature(name=name) for name in names], action_features=[Feature(name="a")]
        ),
        actions=[
            Action(id=f"a={number}", factors={"a": str(number)}, features=[float(number)])
            for number in range(ACTIONS)
        ],
        policy=PolicySpec(rule="epsilon_greedy", epsilon=0.5, floor=0.01, salt="0" * 32),
        training=rows[:1500, :CONTEXT],
        validation=rows[1500:, :CONTEXT],
        lineage=Lineage(data_digest="sha256:" + "0" * 64, code_version="bench", run_id="bench"),
        golden_cases=256,
    )
    info = inspect(directory)
    return (
        bytes.fromhex(info.digest.removeprefix("sha256:")),
        int(info.schema_fingerprint, 16),
        [action.id for action in info.actions],
    )


def training(rows: int, trees: int = 20, depth: int = 6) -> float:
    """Train with XGBoost on one core; return the processor time per row and tree in ns.

    Args:
        rows: Rows of 40 features.
        trees: Number of trees.
        depth: Their depth.
    """
    import xgboost as xgb

    random_ = np.random.default_rng(4)
    data: Any = random_.random((rows, 40), dtype=np.float32)
    matrix = xgb.DMatrix(data, (data[:, 0] > random_.random(rows)).astype(np.float32), nthread=1)
    plan = {"objective": "binary:logistic", "max_depth": depth, "nthread": 1, "tree_method": "hist"}
    began = time.process_time()
    xgb.train(plan, matrix, trees)
    return (time.process_time() - began) / (rows * trees) * 1e9
