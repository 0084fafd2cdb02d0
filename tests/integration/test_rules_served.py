"""Tests of bundles with rules on a real server: replies, records, the log, a client of a release."""

from __future__ import annotations

import json
import re
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import ACTIONS, FEATURES, rows, tiny_action_bundle, tiny_score_bundle
from old_wire import RELEASES, OldWire
from servers import ACTION, SCORE, RunningServer, scorer, settings, start_server

from scorer.bundle.rules import BundleRules, RuleList
from scorer.client import Client, FiredRule, InvalidRequestError
from scorer.registry import Registry

PATIENT = 20.0

CHECKOUT = """
name = "checkout"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "large"
when = "amount > 150.0 && int(hour) in list(\\"closed\\")"
decision = "decline"
reason = "R01"
source = "agreement"
queue = "level_2"

[[rules]]
id = "many"
when = "count_24h >= 4.0"
floor = 0.5
reason = "R02"

[[rules]]
id = "explore"
when = "amount >= 120.0 && amount < 130.0"
decision = "decline"
daily = 3
daily_amount = { of = "amount", most = 400.0 }
"""

EXEMPTIONS = """
name = "exemptions"

[[rules]]
id = "tra_limit"
when = "amount > 100.0"
remove = { exemption = ["tra"] }
reason = "E1"
source = "Delegated Regulation (EU) 2018/389, article 18"

[[rules]]
id = "challenge"
when = "distance > 30.0"
keep = { "3ds" = ["frictionless"] }
source = "agreement"
"""

CLOSED = RuleList("\n".join(map(str, range(12))).encode(), "int")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("server")
    tiny_score_bundle(result / "score", rules=BundleRules(CHECKOUT, {"closed": CLOSED}))
    tiny_action_bundle(result / "action", rules=BundleRules(EXEMPTIONS))
    registry = Registry(result / "registry")
    registry.alias("fraud-checkout", "live", registry.push(result / "score"))
    registry.alias("action-authorise", "live", registry.push(result / "action"))
    return result


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[RunningServer]:
    fallback = f'fallback = {{ action = "{ACTIONS[0]}" }}\n'
    with start_server(directory, settings(SCORE + ACTION + fallback)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Client]:
    with Client(server.address, timeout=PATIENT) as client:
        client.wait_ready()
        yield client


def row(**values: float) -> dict[str, float]:
    return {"amount": 50.0, "hour": 15.0, "count_24h": 0.0, "distance": 1.0, **values}


def test_rules_decide_at_a_fraud_checkpoint(client: Client, directory: Path) -> None:
    from scorer.bundle import Bundle

    offline = Bundle.load(directory / "score")
    calm = client.score("fraud.checkout", row())
    assert calm.rules is not None and calm.rules.fired == () and calm.rules.score == calm.score
    large = client.score("fraud.checkout", row(amount=200.0, hour=3.0, count_24h=5.0))
    assert large.rules is not None
    assert large.rules.fired == (FiredRule("large", "R01", "agreement"), FiredRule("many", "R02"))
    assert (large.decision, large.rules.queue) == ("decline", "level_2")
    many = client.score("fraud.checkout", row(count_24h=5.0))
    data = np.asarray([[50, 15, 5, 1]], np.float32)
    assert many.score == float(offline.score(data).scores[0]), "rules do not change the score"
    assert many.rules is not None and many.rules.score == max(many.score, 0.5)
    assert many.decision in ("review", "decline")
    missing = client.score("fraud.checkout", {"amount": 200.0, "hour": 3.0})
    assert missing.rules is not None and missing.rules.unknown == 1 and missing.decision == "decline"
    batch = client.score_batch("fraud.checkout", np.asarray([[200, 3, 0, 1], [50, 15, 5, 1]], np.float32))
    assert list(batch.decisions) == ["decline", many.decision]


def test_a_rule_with_a_daily_budget_decides_so_many_requests(client: Client, server: RunningServer) -> None:
    answers = [
        client.score("fraud.checkout", row(amount=125.0), request_id=f"explore-{at}")
        for at in (0, 0, 1, 2, 3, 4)
    ]
    fired = [[rule.id for rule in answer.rules.fired] if answer.rules else None for answer in answers]
    assert fired == [["explore"], ["explore"], ["explore"], ["explore"], [], []]
    assert [answer.decision == "decline" for answer in answers] == [True] * 4 + [False] * 2
    with urllib.request.urlopen(f"http://{server.serving['metrics']}/metrics", timeout=PATIENT) as reply:
        text = reply.read().decode()
    for of, used, left in (("decisions", 3, 0), ("amount", 375, 25)):
        labels = f'{{checkpoint="fraud.checkout",rule="explore",of="{of}"}}'
        assert f"scorer_rule_budget_used{labels} {used}.0\n" in text
        assert f"scorer_rule_budget_remaining{labels} {left}.0\n" in text


def test_rules_restrict_the_actions_of_a_checkpoint(client: Client) -> None:
    without_tra = [action for action in ACTIONS if "tra" not in action]
    for number in range(30):
        answer = client.select_action(
            "action.authorise", row(amount=150.0), include_pmf=True, request_id=f"limit-{number}"
        )
        assert answer.rules is not None and [rule.id for rule in answer.rules.fired] == ["tra_limit"]
        assert answer.action in without_tra
        assert {ACTIONS[at] for at, p in enumerate(answer.pmf) if p > 0} == set(without_tra)
        assert answer.propensity == pytest.approx(answer.pmf[answer.action_index], abs=1e-6)
    free = client.select_action("action.authorise", row(), include_pmf=True)
    assert free.rules is not None and free.rules.fired == () and all(p > 0 for p in free.pmf)
    only = client.select_action("action.authorise", row(amount=150.0), eligible=[ACTIONS[0], ACTIONS[1]])
    assert (only.action, only.propensity) == (ACTIONS[0], 1.0)


def test_rules_that_leave_nothing_have_a_safe_result(client: Client, server: RunningServer) -> None:
    far = row(distance=40.0)
    answer = client.select_action("action.authorise", far, eligible=[ACTIONS[0], ACTIONS[1]])
    assert (answer.action, answer.propensity) == (ACTIONS[0], 1.0)
    assert answer.served.fallback_reason == "rules_leave_nothing"
    with pytest.raises(InvalidRequestError, match="leave none of these actions"):
        client.select_action("action.authorise", far, eligible=[ACTIONS[1]])
    with urllib.request.urlopen(f"http://{server.serving['metrics']}/metrics", timeout=PATIENT) as page:
        text = page.read().decode()
    assert re.search(r'scorer_fallbacks_total\{[^}]*reason="rules_leave_nothing"\} 1\b', text)
    assert re.search(
        r'scorer_rule_hits_total\{name="action-authorise",bundle="\w{12}",rule="challenge"\} 2\b', text
    )


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_a_client_of_a_release_gets_the_same_decisions(release: Path, server: RunningServer) -> None:
    wire = OldWire(release)
    request = wire.message("scorer.v1.ScoreRequest")(checkpoint="fraud.checkout")
    for name, value in row(amount=200.0, hour=3.0).items():
        request.named.features.add(name=name, number=value)
    reply = wire.call(server.channel(), "scorer.v1.ScoringService", "Score", request)
    assert reply.decision == "decline"


def test_the_log_has_the_rules_and_verifies(client: Client, server: RunningServer, tmp_path: Path) -> None:
    from pyarrow import parquet

    for at, values in enumerate(rows(40, seed=4)):
        data = dict(zip(FEATURES, map(float, values), strict=True))
        client.score("fraud.checkout", data, request_id=f"score-{at}")
        client.select_action("action.authorise", data, request_id=f"action-{at}")
    server.stop()
    where = server.directory
    verified = scorer(
        "log", "verify", "--log", "decisions", "--bundles", "registry/bundles", "--json", cwd=where
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    exported = tmp_path / "decisions.parquet"
    done = scorer("log", "export", "--log", "decisions", "--to", str(exported), cwd=where)
    assert done.returncode == 0, done.stderr
    table = {one["decision_id"]: one for one in parquet.read_table(exported).to_pylist()}
    limit: dict[str, Any] = table["limit-0"]
    assert limit["rules"] == [{"id": "tra_limit", "reason": "E1"}] and limit["ruled_score"] is None
    assert [action for action, yes in zip(ACTIONS, limit["eligible"], strict=True) if not yes] == [
        action for action in ACTIONS if "tra" in action
    ]
    scored = [one for name, one in table.items() if name.startswith("score-")]
    for one in scored:
        fired = [rule["id"] for rule in one["rules"]]
        assert ("many" in fired) == (one["features"][2] >= 4)
        assert one["ruled_score"] == (max(one["score"], 0.5) if "many" in fired else one["score"])
    assert len(scored) == 40 and any(one["rules"] for one in scored)
    assert json.loads(verified.stdout)


def test_rules_that_do_not_fit_are_refused_at_load(tmp_path: Path, built_bundles: dict[str, Path]) -> None:
    """A bundle whose rules were changed after it was built is not served."""
    from scorer.bundle import verify
    from scorer.errors import BundleError

    tiny_score_bundle(tmp_path / "score", rules=BundleRules(CHECKOUT, {"closed": CLOSED}))
    altered = tmp_path / "altered"
    shutil.copytree(tmp_path / "score", altered)
    text = (altered / "rules.toml").read_text()
    (altered / "rules.toml").write_text(text.replace("150.0", "950.0"))
    with pytest.raises(BundleError, match=r"rules\.toml: content is sha256"):
        verify(altered)
    (altered / "list-01.txt").unlink()
    (altered / "rules.toml").write_text(text)
    with pytest.raises(BundleError, match=r"list-01\.txt: the file is missing"):
        verify(altered)
