"""Test of the review queue with a real server and platform: decision, case, reviewer, outcome."""

from __future__ import annotations

import base64
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import shop
from bundles import FEATURES, rows
from platforms import World as Platform
from servers import SCORE, RunningServer, settings, start_server
from servers import scorer_in_process as scorer

from scorer.client import Client
from scorer.log import export, scan
from scorer.log.outcome_source import REVIEWER
from scorer.log.proof import KNOWN, TOKEN, UNPROVEN
from scorer.registry import Registry
from scorer.release.model import CaseDecision, CaseDelivery, CaseState
from scorer.release.requests import CaseFilter, DecideCase
from scorer.sdk import ConflictError, InvalidError, PlatformClient
from scorer.token_keys import add_key

SETTINGS = """
[platform]
database = "{{database}}"
[[fleet]]
name = "live-1"
control = "{control}"
scoring = "{scoring}"
log = "{log}"
[checkpoints."fraud.checkout"]
alias = "fraud-checkout@live"
[checkpoints."fraud.checkout".review]
project = "fraud"
amount = "{amount}"
[checkpoints."action.authorise"]
alias = "action-authorise@live"
"""


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]
) -> Iterator[RunningServer]:
    with shop.server(tmp_path_factory.mktemp("server"), built_bundles["score-1"]) as running:
        yield running


@pytest.fixture(scope="module")
def answers(server: RunningServer) -> dict[str, str]:
    """Labels of the server's decisions, by id."""
    found = {}
    with Client(server.address) as client:
        for number, row in enumerate(rows(60, seed=3).tolist()):
            named = dict(zip(FEATURES, row, strict=True))
            one = client.score("fraud.checkout", named, request_id=f"pay-{number}", timeout=30, reasons=3)
            found[one.decision_id] = one.decision
    assert {"review", "approve"} <= set(found.values())
    return found


@pytest.fixture(scope="module")
def platform(
    tmp_path_factory: pytest.TempPathFactory,
    built_bundles: dict[str, Path],
    server: RunningServer,
    answers: dict[str, str],
) -> Iterator[Platform]:
    text = SETTINGS.format(
        control=server.control,
        scoring=server.address,
        log=server.directory / "decisions",
        amount=FEATURES[0],
    )
    world = Platform(tmp_path_factory.mktemp("platform"), built_bundles, settings=text)
    world.platform.collect()
    yield world
    world.close()


@pytest.fixture(scope="module")
def url(platform: Platform) -> Iterator[str]:
    with platform.served() as address:
        yield address


@pytest.fixture
def modeler(platform: Platform, url: str) -> Iterator[PlatformClient]:
    with PlatformClient(url, platform.tokens["modeler"], timeout=60) as client:
        yield client


def outcomes(log: Path) -> list[tuple[str, str, float, int, int]]:
    """Return decision id, kind, value, revision and proof of each outcome in a log."""
    return [
        (one.record.decision_id, one.record.kind, one.record.value, one.record.revision, one.record.proof)
        for one in scan(log, kinds={"outcome"})
    ]


def test_a_review_of_a_real_decision_is_an_outcome_in_the_log_of_its_server(
    platform: Platform, server: RunningServer, answers: dict[str, str], modeler: PlatformClient, url: str
) -> None:
    asked = {name for name, label in answers.items() if label == "review"}
    platform.platform.collect()
    cases = list(modeler.reviews(state="open"))
    assert {one.decision_id for one in cases} == asked
    assert len(cases) == len(asked), "each decision is one case"
    first, second = cases[:2]
    assert first.amount == pytest.approx(rows(60, seed=3)[int(first.decision_id[4:])][0], rel=1e-6)
    assert first.score is not None
    assert 0.4 <= first.score < 0.8

    # A case manager of one's own: claim, decide, correct.
    assert modeler.claim_review(first.id).assignee == "modeler"
    with PlatformClient(url, platform.tokens["owner"], timeout=60) as owner:
        with pytest.raises(ConflictError, match="assigned to modeler"):
            owner.decide_review(first.id, "decline", reason="confirmed_fraud")
        assert owner.assign_review(first.id, "approver").assignee == "approver"
        assert owner.assign_review(first.id, "modeler").assignee == "modeler"
    with pytest.raises(InvalidError, match="not a reason of the project"):
        modeler.decide_review(first.id, "decline", reason="made_up")
    decided = modeler.decide_review(first.id, "decline", reason="confirmed_fraud", notes="called the bank")
    assert (decided.state, decided.decision, decided.delivery) == (
        CaseState.DECIDED,
        CaseDecision.DECLINE,
        CaseDelivery.WAITING,
    )
    platform.platform.review()
    assert modeler.review(first.id).case.delivery is CaseDelivery.DELIVERED
    assert outcomes(server.directory / "decisions") == [(first.decision_id, "review", 1.0, 0, KNOWN)]
    _check_source(server.directory / "decisions", first.id, first.decision_id, url, platform)

    modeler.decide_review(first.id, "approve", reason="customer_verified")
    platform.platform.review()
    assert [one[2:4] for one in outcomes(server.directory / "decisions")] == [(1.0, 0), (0.0, 1)]
    # The decision explorer reads it from the log, where the correction is in force.
    shown = modeler.decision(first.decision_id)["outcomes"]
    assert [(one["kind"], one["revision"], one["counts"], one["proven"]) for one in shown] == [
        ("review", 0, False, True),
        ("review", 1, True, True),
    ]

    # A server that does not respond gets the outcome when it does again.
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        modeler.decide_review(second.id, "decline", reason="suspected_fraud")
        platform.platform.review()
        waiting = modeler.review(second.id)
        assert waiting.case.delivery is CaseDelivery.WAITING
        assert "has not responded" in waiting.error
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    _make_due(platform)
    platform.platform.review()
    assert modeler.review(second.id).case.delivery is CaseDelivery.DELIVERED
    kept = [one for one in outcomes(server.directory / "decisions") if one[0] == second.decision_id]
    assert kept == [(second.decision_id, "review", 1.0, 0, KNOWN)]


def _check_source(log: Path, case: int, decision_id: str, url: str, platform: Platform) -> None:
    """Check that the log, its exports and the decision explorer name the reviewer as the source."""
    (record,) = (one.record for one in scan(log, kinds={"outcome"}))
    assert (record.source.kind, record.source.id) == (REVIEWER, f"case-{case}")
    decisions, reports = log.with_name("decisions.parquet"), log.with_name("outcomes.parquet")
    export(log, decisions, outcomes_to=reports)
    (row,) = (one for one in pq.read_table(reports).to_pylist())
    assert (row["decision_id"], row["source"], row["source_id"]) == (decision_id, "reviewer", f"case-{case}")
    joined = {
        one["decision_id"]: one["outcome_review_source"] for one in pq.read_table(decisions).to_pylist()
    }
    assert joined.pop(decision_id) == "reviewer"
    assert set(joined.values()) == {None}
    counted = json.loads(scorer("log", "stat", "--log", str(log), "--json").stdout)
    assert counted["outcome_sources"] == {"reviewer": 1}
    with platform.api(url, "viewer") as viewer:
        (shown,) = viewer.get(f"/decisions/{decision_id}").json()["outcomes"]
    assert (shown["source"], shown["source_id"]) == ("reviewer", f"case-{case}")


def _make_due(platform: Platform) -> None:
    """Let the pause after the failed attempt end."""
    from scorer.release.store import tables as t
    from scorer.release.store import utcnow

    with platform.platform.store.write() as connection:
        connection.execute(t.review_outbox.update().values(due_at=utcnow()))


def test_rest_refuses_what_a_role_does_not_allow(platform: Platform, url: str) -> None:
    with platform.api(url, "viewer") as viewer:
        listed = viewer.get("/reviews", params={"state": "open", "limit": 2}).json()
        assert len(listed["items"]) == 2
        assert listed["next"]
        case = listed["items"][0]["id"]
        assert viewer.post(f"/reviews/{case}/claim", json={}).status_code == 403
        assert viewer.put("/projects/fraud/review-reasons", json={"reasons": []}).status_code == 403
        assert viewer.get("/reviews", params={"state": "lost"}).status_code == 422
        assert viewer.get("/reviews", params={"cursor": "x"}).status_code == 422
    with platform.api(url, "outsider") as outsider:
        assert outsider.get("/reviews").json()["items"] == []
        assert outsider.get(f"/reviews/{case}").status_code == 404
        assert outsider.post(f"/reviews/{case}/claim", json={}).status_code == 404
    with platform.api(url, None) as nobody:
        assert nobody.get("/reviews").status_code == 401
    with platform.api(url, "modeler") as modeler:
        body = {"decision": "decline", "reason": "confirmed_fraud", "more": 1}
        assert modeler.post(f"/reviews/{case}/decide", json=body).status_code == 422


def test_the_command_line_lists_and_decides(
    platform: Platform, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCORER_PLATFORM_URL", url)
    monkeypatch.setenv("SCORER_PLATFORM_TOKEN", platform.tokens["modeler"])
    listed = scorer("review", "list", "--state", "open", "--json")
    assert listed.returncode == 0, listed.stderr
    case, name = (str(json.loads(listed.stdout)[0][key]) for key in ("id", "decision_id"))
    assert name in scorer("review", "list", "--state", "open").stdout
    for arguments in (("claim", case), ("release", case), ("assign", case, "modeler")):
        done = scorer("review", *arguments)
        assert done.returncode == 0, done.stderr
    done = scorer("review", "decide", case, "approve", "--reason", "known_customer", "--notes", "regular")
    assert done.returncode == 0, done.stderr
    shown = scorer("review", "show", case)
    assert "known_customer" in shown.stdout
    assert "regular" in shown.stdout
    refused = scorer("review", "decide", case, "decline", "--reason", "made_up")
    assert refused.returncode == 1
    assert "not a reason of the project" in refused.stderr


def test_the_metrics_count_the_cases(platform: Platform, modeler: PlatformClient) -> None:
    numbers = {
        "open": len(list(modeler.reviews(state="open"))),
        "overdue": 0,
        "undelivered": len(list(modeler.reviews(delivery="waiting"))),
    }
    lines = platform.platform.metrics()
    for state, number in numbers.items():
        assert f'scorer_platform_reviews{{checkpoint="fraud.checkout",state="{state}"}} {number}' in lines


def test_a_decision_token_proves_the_outcome_of_a_review(
    tmp_path: Path, built_bundles: dict[str, Path]
) -> None:
    registry = Registry(tmp_path / "registry")
    registry.alias("fraud-checkout", "live", registry.push(built_bundles["score-1"]))
    add_key(tmp_path / "keys.json")
    text = settings(SCORE) + '\n[outcomes]\ntoken_keys = "keys.json"\n'
    tokens: dict[str, bytes] = {}
    with start_server(tmp_path, text) as server:
        with Client(server.address) as client:
            for number, row in enumerate(rows(60, seed=3).tolist()):
                named = dict(zip(FEATURES, row, strict=True))
                one = client.score("fraud.checkout", named, request_id=f"pay-{number}", timeout=30)
                if one.decision == "review":
                    tokens[one.decision_id] = one.decision_token
        log = server.directory / "decisions"
        own = SETTINGS.format(control=server.control, scoring=server.address, log=log, amount="")
        (tmp_path / "platform").mkdir()
        world = Platform(tmp_path / "platform", built_bundles, settings=own)
        try:
            world.platform.collect()
            reviews, modeler = world.service.reviews, world.actor("modeler")
            (first, second, *_), _ = reviews.list(modeler, CaseFilter(state=CaseState.OPEN))
            token = base64.b64encode(tokens[first.decision_id]).decode()
            body = {"decision": "decline", "reason": "confirmed_fraud"}
            reviews.decide(modeler, first.id, DecideCase(**body, decision_token=token))  # type: ignore[arg-type]
            reviews.decide(modeler, second.id, DecideCase(**body))  # type: ignore[arg-type]
            world.platform.review()
            proofs = {one[0]: one[4] for one in outcomes(log)}
            assert proofs == {first.decision_id: TOKEN, second.decision_id: UNPROVEN}
            shown = [reviews.get(modeler, one.id).history[-1].details["proven"] for one in (first, second)]
            assert shown == [True, False]
        finally:
            world.close()
