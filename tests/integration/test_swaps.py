"""Tests that swaps under load lose and mix no requests, and that a rejected candidate changes nothing."""

from __future__ import annotations

import itertools
import threading
import urllib.request
from pathlib import Path

import pytest
from bundles import rows, tiny_score_bundle
from servers import RunningServer, settings, start_server
from waiting import wait_until

from scorer.bundle import Bundle
from scorer.client import Client
from scorer.registry import Registry

CHECKPOINT = "fraud.checkout"
SCORE = f'[checkpoints."{CHECKPOINT}"]\nkind = "score"\nalias = "fraud-checkout@live"\np99_ms = 60000.0\n'
SWAPS = 12


def world(base: Path, count: int) -> tuple[Registry, list[str], dict[str, list[float]]]:
    """A registry with some bundles, of which the first is live, and the scores of each row by each bundle."""
    registry = Registry(base / "registry")
    digests, expected = [], {}
    for variant in range(1, count + 1):
        path = base / f"built-{variant}"
        tiny_score_bundle(path, variant=variant)
        digests.append(registry.push(path))
        expected[digests[-1]] = [float(score) for score in Bundle.load(path).score(rows(32)).scores]
    registry.alias("fraud-checkout", "live", digests[0])
    return registry, digests, expected


def metrics(server: RunningServer) -> str:
    with urllib.request.urlopen(f"http://{server.serving['metrics']}/metrics") as page:
        return str(page.read().decode())


@pytest.mark.fault_case(62)
def test_every_answer_is_of_one_bundle_while_an_alias_moves(tmp_path: Path) -> None:
    registry, digests, expected = world(tmp_path, 4)
    assert len({tuple(scores) for scores in expected.values()}) == len(digests), "the bundles must differ"
    inputs = rows(32)
    stop = threading.Event()
    answers: list[tuple[int, str, float]] = []
    failures: list[BaseException] = []
    with start_server(tmp_path, settings(SCORE)) as server:

        def send_requests() -> None:
            try:
                with Client(server.address) as client:
                    while not stop.is_set():
                        at = len(answers) % len(inputs)
                        scored = client.score(CHECKPOINT, inputs[at], timeout=30)
                        assert scored.served.by_model
                        answers.append((at, scored.served.bundle, scored.score))
            except BaseException as error:
                failures.append(error)

        sender = threading.Thread(target=send_requests)
        sender.start()
        try:
            server.event("first_answer", bundle=digests[0])
            for number in range(1, SWAPS + 1):
                bundle = digests[number % len(digests)]
                registry.alias("fraud-checkout", "live", bundle)
                first_answer = server.event("first_answer", bundle=bundle)
                assert first_answer["checkpoint"] == CHECKPOINT
                stages = [
                    first_answer[f"{stage}_ms"]
                    for stage in ("read", "verify", "assemble", "golden", "warm_up")
                ]
                assert all(stage > 0 for stage in stages)
                assert first_answer["total_ms"] >= sum(stages)
        finally:
            stop.set()
            sender.join()
        assert not failures, failures
        wrong = [answer for answer in answers if answer[2] != expected[answer[1]][answer[0]]]
        assert not wrong
        assert {bundle for _, bundle, _ in answers} == set(digests)
        order = [bundle for _, bundle, _ in answers]
        changes = sum(one != other for one, other in itertools.pairwise(order))
        assert changes == SWAPS, "no bundle answers after a newer one has answered"
        wait_until(
            lambda: len(server.named("bundle_freed")) == SWAPS - 1 or None, "every old bundle to be freed"
        )
        assert {event["thread"] for event in server.named("bundle_freed")} == {"scorer-reaper"}
        assert f'scorer_data_load_seconds_count{{checkpoint="{CHECKPOINT}"}} {SWAPS + 1}' in metrics(server)


def test_a_larger_model_is_refused_until_an_operator_confirms_it(tmp_path: Path) -> None:
    registry, (first,), expected = world(tmp_path, 1)
    tiny_score_bundle(tmp_path / "huge", variant=2, trees=4000, depth=3)
    huge = registry.push(tmp_path / "huge")
    # A hundredth of this SLA is 1 us, so that every larger evaluation exceeds it. The mode is not `enforce`,
    # because the machine may be busy.
    strict = SCORE.replace("60000.0", "0.1") + 'warmup_max_ratio = 1.5\nmode = "off"\n'
    with start_server(tmp_path, settings(strict)) as server, Client(server.address) as client:
        registry.alias("fraud-checkout", "live", huge)
        refused = server.event("candidate_refused", bundle=huge)
        assert "times the live bundle's" in refused["reason"]
        assert server.status()["rejections"][0]["reason"] == refused["reason"]
        assert 'scorer_loads_refused_total{reason="warm_up"} 1' in metrics(server)
        row = rows(32)[0]
        scored = client.score(CHECKPOINT, row, timeout=30)
        assert (scored.served.bundle, scored.score) == (first, expected[first][0])
        done = server.cli("swap", CHECKPOINT, "fraud-checkout@live", "--allow-slower", "--reason", "larger")
        assert done.returncode == 0, done.stderr
        assert client.score(CHECKPOINT, row, timeout=30).served.bundle == huge


def test_a_candidate_that_memory_cannot_hold_is_refused_with_figures(tmp_path: Path) -> None:
    registry, (first, second), _ = world(tmp_path, 2)
    with start_server(tmp_path, settings(SCORE)) as server, Client(server.address) as client:
        assert client.score(CHECKPOINT, rows(1)[0], timeout=30).served.bundle == first
    poor = settings(SCORE, server="memory_budget_mb = 1")
    with start_server(tmp_path, poor, ready=False) as server:
        event = server.event("last_known_good_refused")
        assert "MiB" in event["error"] and "memory_budget_mb" in event["error"]
        registry.alias("fraud-checkout", "live", second)
        refused = server.event("candidate_refused", bundle=second)
        assert "1 MiB (memory_budget_mb)" in refused["reason"]
