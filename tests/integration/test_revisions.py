"""Tests of revisions on a real server: swapped under load, with shared forests and exact propensities."""

from __future__ import annotations

import math
import threading
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers import ACTION as SETTINGS
from servers import scorer_in_process, settings, start_server
from trained import ACTION_FEATURES, ACTIONS, CONTEXT, CREATED, LINEAGE, SALT, contexts, labels_of, train

from scorer.bundle import Bundle, OverlaySpec, PolicySpec, SchemaFile, build_action_bundle, revise
from scorer.client import Client
from scorer.log import LogReader
from scorer.registry import Registry

CHECKPOINT = "action.authorise"
SWAPS = 8


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = contexts(3000)
    own = np.array([action.features for action in ACTIONS], dtype=np.float32)
    whole = np.concatenate([rows, own[np.random.default_rng(3).integers(0, len(ACTIONS), len(rows))]], axis=1)
    schema = SchemaFile(features=CONTEXT, action_features=ACTION_FEATURES)
    path = tmp_path_factory.mktemp("live") / "bundle"
    build_action_bundle(
        path,
        name="action-authorise",
        model=train(whole, labels_of(whole), [feature.name for feature in schema.columns]),
        schema=schema,
        actions=ACTIONS,
        policy=PolicySpec(rule="squarecb", gamma=50, floor=0.06, salt=SALT),
        training=rows[:2000],
        validation=rows[2000:],
        lineage=LINEAGE,
        created_at=CREATED,
    )
    return path


def overlay(offset: float) -> OverlaySpec:
    return OverlaySpec(
        segment="country",
        everywhere={"three_ds": {"challenge": offset}},
        segments={"DE": {"exemption": {"tra": -2 * offset}}},
    )


def features(row: Any) -> dict[str, Any]:
    named = dict(zip((feature.name for feature in CONTEXT), row.tolist(), strict=True))
    known = {name: value for name, value in named.items() if not math.isnan(value)}
    if "country" in known:
        known["country"] = CONTEXT[2].categories[int(known["country"])]
    return known | {"night": bool(named["night"])}


def test_an_alias_moves_through_revisions_under_load(live: Path, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    first = registry.push(live)
    registry.alias("action-authorise", "live", first)
    paths, digests, last = {first: live}, [first], live
    for number in range(SWAPS):
        revised = revise(last, tmp_path / f"r{number}", overlay=overlay((-1) ** number * (0.5 + number / 10)))
        digests.append(registry.push(revised.path))
        assert digests[-1] == revised.digest
        paths[revised.digest] = last = revised.path
    rows = contexts(64, seed=9)
    row_of: dict[str, int] = {}
    answers: dict[str, Any] = {}
    failures: list[BaseException] = []
    stop = threading.Event()
    with start_server(tmp_path, settings(SETTINGS, log=f'dir = "{tmp_path / "log"}"')) as server:

        def send_requests() -> None:
            try:
                with Client(server.address) as client:
                    while not stop.is_set():
                        identity = f"d{len(answers)}"
                        row_of[identity] = len(answers) % len(rows)
                        row = features(rows[row_of[identity]])
                        chosen = client.select_action(CHECKPOINT, row, request_id=identity, timeout=30)
                        assert chosen.served.by_model
                        answers[identity] = chosen
            except BaseException as error:
                failures.append(error)

        sender = threading.Thread(target=send_requests)
        sender.start()
        try:
            server.event("first_answer", bundle=first)
            for digest in digests[1:]:
                registry.alias("action-authorise", "live", digest)
                server.event("first_answer", bundle=digest)
        finally:
            stop.set()
            sender.join()
        assert not failures, failures
        with urllib.request.urlopen(f"http://{server.serving['metrics']}/metrics") as page:
            metrics = page.read().decode()
        loaded = {event["report"]["digest"]: event["report"] for event in server.named("bundle_loaded")}
    size = (live / "forest.bin").stat().st_size
    assert [loaded[digest]["shared_bytes"] for digest in digests] == [0] + [size] * SWAPS
    # The server holds the live and the previous revision, and their forest once.
    held = sum(file.stat().st_size for path in list(paths.values())[-2:] for file in path.iterdir())
    held -= sum((path / "manifest.json").stat().st_size for path in list(paths.values())[-2:]) + size
    assert f"scorer_bundle_bytes {held}" in metrics.splitlines()

    # Every answer and every logged propensity equals that of the revision that it names.
    evaluated = {digest: Bundle.load(path).evaluate(rows) for digest, path in paths.items()}
    decisions = {
        record.decision.decision_id: record.decision
        for _, record in LogReader(tmp_path / "log").records()
        if record.WhichOneof("record") == "decision"
    }
    assert decisions.keys() == answers.keys()
    for identity, decision in decisions.items():
        answer = answers[identity]
        pmf, rewards = (values[row_of[identity]] for values in evaluated[f"sha256:{decision.bundle.hex()}"])
        assert answer.served.bundle == f"sha256:{decision.bundle.hex()}"
        assert list(decision.pmf) == pmf.tolist()
        assert (answer.propensity, answer.expected_reward) == (
            pmf[answer.action_index],
            rewards[answer.action_index],
        )
    assert {answer.served.bundle for answer in answers.values()} == set(digests)
    arguments = [argument for path in paths.values() for argument in ("--bundles", str(path))]
    done = scorer_in_process("log", "verify", "--log", str(tmp_path / "log"), *arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f'"verified": {len(answers)}' in done.stdout
