"""Tests that clients notice nothing while one of three replicas is killed, drained or swaps its bundle.

The clients call through nginx, through HAProxy (with the configurations of deploy/ and mutual TLS), and with
a list of addresses.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from replicas import ROUTES, Replicas, Traffic, route, three_replicas
from servers import RunningServer
from waiting import wait_until


@pytest.fixture
def replicas(tmp_path: Path, built_bundles: dict[str, Path]) -> Iterator[Replicas]:
    with three_replicas(tmp_path, built_bundles) as replicas:
        yield replicas


def bundles_answer(server: RunningServer, bundles: set[str], *, after: int) -> None:
    """Wait for the first answers of bundles, in any order, after a number of such events."""
    wait_until(
        lambda: bundles <= {event["bundle"] for event in server.named("first_answer")[after:]},
        f"first answers of {sorted(bundles)}",
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUTES)
def test_no_call_fails_while_a_replica_is_killed_drained_or_swapped(
    name: str, replicas: Replicas, built_bundles: dict[str, Path]
) -> None:
    with route(name, replicas) as to, Traffic(to.client) as traffic:
        for place in range(3):
            replicas.is_called_again(place)
        wait_until(lambda: traffic.bundles)
        first = set(traffic.bundles)
        assert len(first) == 1

        replicas.servers[0].kill()
        traffic.continues()
        to.mark_down(0)
        replicas.start(0)
        to.mark_down()
        replicas.is_called_again(0)

        assert replicas.servers[1].stop() == 0, replicas.servers[1].transcript()
        traffic.continues()
        to.mark_down(1)
        replicas.start(1)
        to.mark_down()
        replicas.is_called_again(1)

        registry = replicas.registry(2)
        other = registry.push(built_bundles["score-2"])
        registry.alias("fraud-checkout", "live", other)
        replicas.servers[2].event("first_answer", bundle=other)
        traffic.continues()
        traffic.ends_without_errors(replicas)
    assert traffic.bundles == first | {other}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUTES)
def test_no_call_fails_while_the_fleet_is_restarted_and_its_lanes_change(
    name: str, replicas: Replicas, built_bundles: dict[str, Path]
) -> None:
    """Each server is drained and started again, as in a rolling upgrade, and the bundles change meanwhile."""
    with route(name, replicas) as to, Traffic(to.client) as traffic:
        for place in range(3):
            replicas.is_called_again(place)
        for place in range(3):
            to.mark_down(place)
            assert replicas.servers[place].stop() == 0, replicas.servers[place].transcript()
            # While one server is away, the others receive other bundles. It finds them when it starts.
            live = {
                bundle: replicas.registry(at).push(built_bundles[bundle])
                for at in range(3)
                for bundle in (f"score-{1 + (place + 1) % 3}", f"action-{2 - place % 2}")
            }
            others = [replicas.servers[at] for at in range(3) if at != place]
            before = [len(server.named("first_answer")) for server in others]
            for at in range(3):
                for bundle, digest in live.items():
                    alias = "fraud-checkout" if bundle.startswith("score") else "action-authorise"
                    replicas.registry(at).alias(alias, "live", digest)
            for server, known in zip(others, before, strict=True):
                bundles_answer(server, set(live.values()), after=known)
            replicas.start(place)
            to.mark_down()
            replicas.is_called_again(place)
            traffic.continues()
        traffic.ends_without_errors(replicas)
    assert len(traffic.bundles) == 3
