"""Tests of comments, reviewers, the history of a draft, the archive, and the summary for an approver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from changing import World
from sqlalchemy import select

from scorer.release.changes.discussion import Discussion, comments
from scorer.release.changes.review import review
from scorer.release.errors import (
    ConflictError,
    InvalidError,
    NotAllowedError,
    NotFoundError,
    QuotaError,
)
from scorer.release.model import Actor, ChangeKind, ChangeState, GateResult, Outcome, Role
from scorer.release.store import tables as t

S = ChangeState


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(f"sqlite:///{tmp_path}/platform.db")
    yield world
    world.store.close()


def discussion(world: World) -> Discussion:
    return Discussion(world.parts)


def audited(world: World, action: str) -> list[dict[str, object]]:
    with world.store.read() as connection:
        result = connection.scalars(select(t.audit.c.details).where(t.audit.c.action == f"change.{action}"))
        return [json.loads(one) for one in result]


# --- comments ---


def test_a_comment_is_an_event_an_audit_entry_and_a_message(world: World) -> None:
    change = world.test("good-1")
    after = discussion(world).comment(world.eve, change.id, text="  <b>why</b> so late?\nplease  ")
    # A comment does not outdate the version that another user has read.
    assert after.version == change.version
    (comment,) = comments(world.changes.get(world.ada, change.id).events)
    assert (comment.actor, comment.details["comment"]) == ("eve", "<b>why</b> so late?\nplease")
    assert audited(world, "comment") == [{"comment": "<b>why</b> so late?\nplease"}]
    assert "eve commented: <b>why</b>" in world.notifications.messages[-1][1]


def test_a_final_change_can_be_commented(world: World) -> None:
    change = world.test("good-1")
    world.changes.withdraw(world.ada, change.id, reason="x")
    discussion(world).comment(world.ada, change.id, text="for the record")
    assert len(comments(world.changes.get(world.ada, change.id).events)) == 1


def test_comments_are_bounded_and_require_the_role_modeler(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = world.test("good-1").id
    for text in ("", "  ", "x" * 2001):
        with pytest.raises(InvalidError, match="1 to 2000"):
            discussion(world).comment(world.ada, change, text=text)
    with pytest.raises(NotAllowedError):
        discussion(world).comment(Actor("vera", {"fraud": Role.VIEWER}), change, text="x")
    with pytest.raises(NotFoundError):
        discussion(world).comment(world.stranger, change, text="x")
    monkeypatch.setattr("scorer.release.changes.discussion._COMMENTS", 2)
    for _ in range(2):
        discussion(world).comment(world.ada, change, text="x")
    with pytest.raises(QuotaError, match="2 comments"):
        discussion(world).comment(world.ada, change, text="x")
    assert len(comments(world.changes.get(world.ada, change).events)) == 2


# --- reviewers ---


def test_reviewers_are_notified_and_find_the_changes_that_they_should_review(world: World) -> None:
    world.access.set_member(world.admin, "fraud", "bob", Role.APPROVER)
    world.access.set_member(world.admin, "fraud", "eve", Role.APPROVER)
    change = world.test("good-1").id
    requested = discussion(world).request_review(world.ada, change, reviewers=["bob", "eve", "bob"])
    assert requested.reviewers == ("bob", "eve")
    assert "ada asks for a review by bob, eve" in world.notifications.messages[-1][1]
    assert [one.id for one in world.changes.list(world.bob, reviewer="bob")] == [change]
    assert world.changes.list(world.bob, reviewer="bo") == []
    sent = len(world.notifications.messages)
    discussion(world).request_review(world.ada, change, reviewers=["bob", "eve"])
    assert len(world.notifications.messages) == sent
    assert discussion(world).request_review(world.ada, change, reviewers=[]).reviewers == ()


def test_only_approvers_who_are_not_authors_can_be_reviewers(world: World) -> None:
    world.access.set_member(world.admin, "fraud", "bob", Role.APPROVER)
    world.access.set_member(world.admin, "fraud", "eve", Role.MODELER)
    world.access.set_member(world.admin, "fraud", "ada", Role.OWNER)
    change = world.test("good-1").id
    for user in ("ada", "eve", "nobody"):
        with pytest.raises(InvalidError, match=f"{user} cannot approve .*: bob"):
            discussion(world).request_review(world.ada, change, reviewers=[user])
    with pytest.raises(NotAllowedError):
        discussion(world).request_review(world.eve, change, reviewers=["bob"])
    assert world.get(change).reviewers == ()


# --- edits ---


def test_an_edit_reports_the_changed_fields(world: World) -> None:
    draft = world.changes.draft(world.ada, world.draft_of("good-1", description="first"))
    changed = replace(world.draft_of("good-2", description="x" * 900), minutes=45.0)
    world.changes.edit(world.ada, draft.id, changed, version=draft.version)
    event = world.changes.get(world.ada, draft.id).events[-1]
    edits = event.details["changes"]
    assert set(edits) == {"bundle", "title", "description", "minutes"}
    assert edits["minutes"] == [30.0, 45.0]
    assert edits["title"] == ["try good-1", "try good-2"]
    before, after = edits["description"]
    assert before == "first"
    assert after.startswith("x" * 500) and after.endswith("(900 characters)")
    assert audited(world, "edit")[0]["changes"] == edits
    now = world.get(draft.id)
    world.changes.edit(world.ada, draft.id, changed, version=now.version)
    assert world.changes.get(world.ada, draft.id).events[-1].details["changes"] == {}


def test_many_views_of_a_change_compare_its_bundles_once(world: World) -> None:
    change = world.test("good-1").id
    world.changes.get(world.ada, change)
    read: list[str] = []
    detail = world.bundles.detail

    def counted(actor: Actor, reference: str) -> object:
        read.append(reference)
        return detail(actor, reference)

    world.bundles.detail = counted  # type: ignore[method-assign, assignment]
    first = world.changes.get(world.ada, change).diff
    assert world.changes.get(world.bob, change).diff == first
    assert read == []


# --- the archive ---


def test_an_archived_change_is_hidden_and_keeps_its_data(world: World) -> None:
    change = world.test("good-1").id
    with pytest.raises(ConflictError):
        discussion(world).archive(world.ada, change)
    ended = world.changes.withdraw(world.ada, change, reason="x")
    with pytest.raises(NotAllowedError):
        discussion(world).archive(Actor("vera", {"fraud": Role.VIEWER}), change)
    assert "archive" in world.changes.get(world.ada, change).allowed
    hidden = discussion(world).archive(world.ada, change, version=ended.version)
    assert (hidden.archived_by, hidden.archived_at) == ("ada", world.now)
    assert world.changes.list(world.ada) == []
    assert [one.id for one in world.changes.list(world.ada, archived=True)] == [change]
    assert [one.id for one in world.changes.list(world.ada, archived=None)] == [change]
    detail = world.changes.get(world.ada, change)
    assert detail.events
    assert "unarchive" in detail.allowed and "archive" not in detail.allowed
    with pytest.raises(ConflictError, match="archived already"):
        discussion(world).archive(world.ada, change)
    with pytest.raises(ConflictError, match="has moved on"):
        discussion(world).unarchive(world.ada, change, version=ended.version)
    discussion(world).unarchive(world.ada, change)
    assert [one.id for one in world.changes.list(world.ada)] == [change]
    assert len(audited(world, "archive")) == len(audited(world, "unarchive")) == 1


# --- search ---


def test_changes_are_found_by_text_and_kind(world: World) -> None:
    first = world.changes.draft(world.ada, world.draft_of("good-1", title="Deeper TREES 50% off"))
    second = world.changes.draft(
        world.ada, world.draft_of("good-2", title="shallow", description="deeper_trees")
    )
    third = world.changes.draft(world.ada, world.draft_of("good-3", ChangeKind.RELEASE, title="third"))

    def search(text: str) -> list[str]:
        return [one.id for one in world.changes.list(world.ada, text=text)]

    assert search("deeper trees") == [first.id]
    assert search("DEEPER") == [second.id, first.id]
    # Wildcard characters are literals.
    assert search("50%") == [first.id]
    assert search("%") == [first.id]
    assert search("r_t") == [second.id]
    assert search(third.id) == search(third.bundle[7:19]) == [third.id]
    kinds = world.changes.list(world.ada, kind=ChangeKind.RELEASE)
    assert [one.id for one in kinds] == [third.id]
    assert world.changes.list(world.stranger, text="deeper") == []


# --- the summary for approvers ---


def gate(metric: str, success: str, outcome: str = "pass", **more: object) -> GateResult:
    values = {"value": None, "low": None, "high": None, "threshold": None, "rows": 900, **more}
    return GateResult(metric, Outcome(outcome), success=success, words="", **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (gate("flip_rate", "<= 0.02 upper95", value=0.01, low=0.008, high=0.017, threshold=0.02), "close"),
        (gate("flip_rate", "<= 0.02 upper95", value=0.004, low=0.001, high=0.008, threshold=0.02), None),
        (gate("exec_p99_us", "<= sla", value=4200.0, threshold=5000.0), "close"),
        (gate("exec_p99_us", "<= sla", value=420.0, threshold=5000.0), None),
        (gate("feature_parity_rate", ">= 0.999", value=1.0, threshold=0.999), None),
        (gate("tail_correlation", ">= 0.65 lower95", value=0.9, low=0.68, threshold=0.65), "close"),
        (gate("tail_correlation", ">= 0.65 lower95", value=0.9, low=0.85, threshold=0.65), None),
        (gate("x", "abs <= 0.25 upper95", value=-0.2, low=-0.24, high=-0.1, threshold=0.25), "close"),
        (gate("error_rate", "== 0", value=0.0, threshold=0.0), None),
        (gate("drop_rate", "<= 0.1", "inconclusive"), "inconclusive"),
        (gate("score_psi_live", "<= 0.2", "fail", dry_run=True), "fails, for information"),
        (gate("auc", ">= 0.7", "fail", waived_by="bob", waived_why="known"), "waived by bob: known"),
    ],
)
def test_notable_gates_are_listed(result: GateResult, reason: str | None) -> None:
    remarks = review([result], {}).remarks
    assert [one.reason.startswith(reason) for one in remarks] == ([True] if reason else [])


def test_the_largest_differences_are_named() -> None:
    diff = {
        "features": {"added": ["a", "b"], "removed": [], "changed": [f"f{n}" for n in range(8)]},
        "thresholds": {
            "before": {"review": 0.4, "decline": 0.8},
            "after": {"review": 0.5, "decline": 0.8},
        },
        "metrics": {"auc": {"before": 0.9, "after": 0.95}, "by_label": {"before": {}, "after": {}}},
    }
    result = review([gate("flip_rate", "<= 0.02", value=0.0125)], diff).differences
    assert result == (
        "Flip rate 1.25 %",
        "features added: a, b",
        "features changed: f0, f1, f2, f3, f4 and 3 more",
        "review from score 0.4 to 0.5",
        "auc of training from 0.9 to 0.95",
    )
