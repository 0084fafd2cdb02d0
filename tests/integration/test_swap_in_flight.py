"""Test that one of two answers to a request id counts when replicas serve different bundles.

While a swap is in flight, two replicas can answer a repeated request with different actions. The checkout
acts on one answer and reports its outcome with the token of that answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundles import FEATURES, rows
from servers import ACTION, RunningServer, settings, start_server
from waiting import PATIENCE

from scorer.client import Client, IdConflictError, SelectedAction
from scorer.learn import settings as learn_settings
from scorer.learn.experience import State
from scorer.learn.join.joining import Joined, join
from scorer.log import BundleShelf
from scorer.log.source.directories import log_directories
from scorer.registry import Registry
from scorer.token_keys import add_key

POINT = "action.authorise"
COUNT = 60
PLAN = learn_settings.parse("[join]\nfamilies = []\nhours = 24.0\n").join


@pytest.fixture
def replicas(tmp_path: Path, built_bundles: dict[str, Path]) -> Iterator[list[RunningServer]]:
    """Two replicas with common token keys, of which the second already serves the new bundle."""
    add_key(tmp_path / "token-keys.json")
    texts = []
    for number in (1, 2):
        registry = Registry(tmp_path / f"registry-{number}")
        registry.alias("action-authorise", "live", registry.push(built_bundles[f"action-{number}"]))
        texts.append(
            settings(f'{ACTION}durability = "written"\n', registry=f'path = "{registry.location}"')
            + f'[outcomes]\ntoken_keys = "{tmp_path / "token-keys.json"}"\n'
        )
        (tmp_path / f"replica-{number}").mkdir()
    with (
        start_server(tmp_path / "replica-1", texts[0]) as first,
        start_server(tmp_path / "replica-2", texts[1]) as second,
    ):
        yield [first, second]


def read(replicas: list[RunningServer], built_bundles: dict[str, Path]) -> Joined:
    """End the servers, and join their logs."""
    for replica in replicas:
        assert replica.stop() == 0, replica.transcript()
    return join(
        log_directories([replica.directory / "decisions" for replica in replicas]),
        BundleShelf([built_bundles["action-1"], built_bundles["action-2"]]),
        PLAN,
        as_of_ms=round(time.time() * 1000) + 1000,
        checkpoint=POINT,
    )


def test_the_answer_that_the_checkout_acted_on_counts_and_the_other_is_a_repetition(
    replicas: list[RunningServer], built_bundles: dict[str, Path]
) -> None:
    acted: dict[str, SelectedAction] = {}
    different = 0
    with (
        Client(replicas[0].address, timeout=PATIENCE) as old,
        Client(replicas[1].address, timeout=PATIENCE) as new,
    ):
        for number, row in enumerate(rows(COUNT, seed=7)):
            payment = f"payment-{number}"
            values = dict(zip(FEATURES, map(float, row), strict=True))
            # The first answer is late; the checkout repeats the request, which reaches the other replica.
            answers = [client.select_action(POINT, values, request_id=payment) for client in (old, new)]
            assert len({answer.served.bundle for answer in answers}) == 2
            different += answers[0].action != answers[1].action
            acted[payment] = answers[number % 2]
            # The outcome reaches either replica, also the one whose answer was not used.
            reporter = (old, new)[number // 2 % 2]
            token = acted[payment].decision_token
            report = reporter.report_outcome(POINT, payment, "authorised", 1.0, decision_token=token)
            assert report.proven
    assert different > COUNT // 20, "the bundles must answer differently"

    joined = read(replicas, built_bundles)
    experience = joined.experience
    assert sorted(experience.decision_id.tolist()) == sorted(acted), "each payment counts exactly once"
    assert set(experience.state.tolist()) == {State.SETTLED}
    for payment, index, propensity in zip(
        experience.decision_id.tolist(),
        experience.action.tolist(),
        experience.propensity.tolist(),
        strict=True,
    ):
        assert (index, propensity) == (acted[payment].action_index, pytest.approx(acted[payment].propensity))
    found = {one.name: one.count for one in joined.findings}
    # The answers are of different bundles, so that even an equal action is another answer.
    assert found["repeated with another answer"] == COUNT
    assert "token of another answer" not in found


def test_a_second_report_with_the_other_token_does_not_count_twice(
    replicas: list[RunningServer], built_bundles: dict[str, Path]
) -> None:
    """Two processes of a checkout act on the same payment, which `IdConflictError` and the join show."""
    with (
        Client(replicas[0].address, timeout=PATIENCE) as old,
        Client(replicas[1].address, timeout=PATIENCE) as new,
    ):
        values = dict(zip(FEATURES, map(float, rows(1, seed=7)[0]), strict=True))
        tokens = [
            client.select_action(POINT, values, request_id="both").decision_token for client in (old, new)
        ]
        assert not old.report_outcome(POINT, "both", "authorised", 1.0, decision_token=tokens[0]).duplicate
        # At the replica that has the first report, an equal one is a duplicate and another one is an error.
        assert old.report_outcome(POINT, "both", "authorised", 1.0, decision_token=tokens[1]).duplicate
        with pytest.raises(IdConflictError):
            old.report_outcome(POINT, "both", "authorised", 0.0, decision_token=tokens[1])
        # The other replica cannot know.
        assert not new.report_outcome(POINT, "both", "authorised", 1.0, decision_token=tokens[1]).duplicate
    joined = read(replicas, built_bundles)
    assert joined.experience.decision_id.tolist() == ["both"]
    found = {one.name: one.count for one in joined.findings}
    assert found["repeated with another answer"] == 1
    assert found["duplicate outcome"] == 1
