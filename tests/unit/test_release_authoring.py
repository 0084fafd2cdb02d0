"""Tests of editing rules on the platform: checks, cases, the bench, saving, conflicts and switches."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bundles import tiny_action_bundle, tiny_score_bundle
from platforms import World

from scorer.bundle import Bundle, read_manifest
from scorer.bundle.rules import BundleRules, RuleList, stored_rules
from scorer.release.authoring.bench import recorded_request
from scorer.release.authoring.switches import with_switch
from scorer.release.authoring.tables import table_grids
from scorer.release.errors import (
    ConflictError,
    InvalidError,
    NotAllowedError,
    NotFoundError,
    ThrottledError,
)
from scorer.release.model import ChangeState
from scorer.release.requests import BenchRules, SaveRules, SwitchRule

RULES = """name = "checkout"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "many"
when = "int(count_24h) in list(\\"large\\")"
decision = "decline"

[[rules]]
id = "night"
when = "hour < 5.0"
floor = 0.5

[[tables]]
id = "limits"
inputs = ["amount", "hour"]
outputs = ["decision"]
rows = [
  ["> 5000.0", "-", "decline"],
  ["[500..5000]", "> 3.0", "review"], # a bracket ] in a comment
]
"""
CASES = '[[cases]]\nname = "at night"\nfeatures = { hour = 3 }\nexpect = { fired = ["night"] }\n'
POINT = "fraud.checkout"


@pytest.fixture
def world(tmp_path: Path, built_bundles: dict[str, Path]) -> Iterator[World]:
    ruled = tmp_path / "ruled"
    tiny_score_bundle(ruled, variant=2, rules=BundleRules(RULES, {"large": RuleList(b"6\n7\n", "int")}))
    world = World(tmp_path, {**built_bundles, "score-2": ruled})
    yield world
    world.close()


def save(world: World, text: str, base: str | None = None, user: str = "modeler", **fields: Any) -> Any:
    given = {"checkpoint": POINT, "note": "A wider night\nfor the holidays", "cases": CASES, **fields}
    asked = SaveRules(text=text, **given)
    return world.service.authoring.save(world.actor(user), "fraud", base or world.candidate, asked)


WIDER = RULES.replace("hour < 5.0", "hour < 6.0")


def test_the_document_has_text_and_typed_names(world: World) -> None:
    document = world.service.authoring.document(world.actor("viewer"), world.candidate)
    assert document.text == RULES and document.cases == "" and document.newer is None
    names = {(one.kind, one.name): one.type for one in document.names}
    assert names["feature", "amount"] == "double" and names["score", "score"] == "double"
    assert names["list", "large"] == "list of int"
    decisions = [one.name for one in document.names if one.kind == "decision"]
    assert decisions == ["decline", "review", "approve"]
    with pytest.raises(NotFoundError):
        world.service.authoring.document(world.actor("outsider"), world.candidate)


def test_the_names_of_an_action_bundle_are_factors_with_their_values(world: World, tmp_path: Path) -> None:
    from scorer.release.authoring.names import rule_names

    tiny_action_bundle(tmp_path / "action")
    found = rule_names(tmp_path / "action", Bundle.load(tmp_path / "action"), None)
    factor = next(one for one in found if one.name == "action.exemption")
    assert (factor.kind, factor.values) == ("factor", ("none", "tra", "low"))
    assert not any(one.kind == "score" for one in found)


def test_checks_are_those_of_the_compiler_with_place_and_remedy(world: World) -> None:
    authoring, viewer = world.service.authoring, world.actor("viewer")
    found = authoring.check(viewer, world.candidate, RULES)
    assert found.ok and [one.id for one in found.rules][:2] == ["many", "night"]
    wrong = authoring.check(viewer, world.candidate, RULES.replace("hour <", "huor <"))
    (problem,) = wrong.problems
    line = RULES.splitlines().index('when = "hour < 5.0"') + 1
    assert (problem.rule, problem.line, problem.column) == ("night", line, 9)
    assert 'the nearest name is "hour"' in problem.problem and problem.remedy == "correct or declare it"
    broken = authoring.check(viewer, world.candidate, "[[rules")
    assert not broken.ok and broken.problems[0].line == 1 and broken.tables == ()


def test_a_user_who_checks_too_often_is_slowed_down(world: World) -> None:
    authoring, viewer = world.service.authoring, world.actor("viewer")
    with pytest.raises(ThrottledError, match="try again") as refused:
        for _ in range(1000):
            authoring.check(viewer, world.candidate, "[[rules")
    assert refused.value.retry_after >= 1
    assert not authoring.check(world.actor("modeler"), world.candidate, "[[rules").ok


def test_cases_run_on_the_edited_rules(world: World) -> None:
    authoring, viewer = world.service.authoring, world.actor("viewer")
    found = authoring.test(viewer, world.candidate, RULES, CASES)
    assert (found.passed, found.failed) == (1, 0) and "many" in found.never
    failed = authoring.test(viewer, world.candidate, RULES.replace("< 5.0", "< 2.0"), CASES)
    assert failed.failed == 1 and "expected ['night']" in failed.cases[0].differences[0]
    with pytest.raises(InvalidError, match="expect"):
        authoring.test(viewer, world.candidate, RULES, '[[cases]]\nname = "x"\n')


def test_the_bench_shows_both_rule_sets_on_typed_features(world: World) -> None:
    authoring, viewer = world.service.authoring, world.actor("viewer")
    asked = BenchRules(text=WIDER, features={"hour": "5.5", "amount": 5, "count_24h": 0}, score=0.2)
    (row,) = authoring.bench(viewer, world.candidate, asked).rows
    assert (row.before.fired, row.before.decision, row.before.score) == ((), "approve", 0.2)
    assert (row.after.fired, row.after.decision, row.after.score) == (("night",), "review", 0.5)
    assert row.changed and row.recorded is None and row.before.unknown == 0
    # A bundle without rules has no rule that fires.
    text = 'name = "one"\n[[rules]]\nid = "small"\nwhen = "amount < 10.0"\ndecision = "review"\n'
    text = text.replace("[[", 'decisions = ["review"]\n[[', 1)
    (row,) = authoring.bench(viewer, world.live, BenchRules(text=text, features={"amount": 1})).rows
    assert row.before.fired == () and row.after.fired == ("small",) and row.after.decision == "review"
    with pytest.raises(InvalidError, match="no such feature"):
        authoring.bench(viewer, world.candidate, BenchRules(text=RULES, features={"amuont": 1}))
    with pytest.raises(InvalidError, match="unknown name"):
        authoring.bench(
            viewer, world.candidate, BenchRules(text=RULES.replace("hour <", "huor <"), features={})
        )


def test_the_bench_repeats_recorded_decisions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision keeps its score, time and id; that of a fallback has no score."""
    at = datetime(2026, 11, 26, 12, tzinfo=UTC)

    def found(_actor: Any, name: str, *, checkpoint: str | None) -> dict[str, Any]:
        values = {"amount": 10.0, "hour": 5.5, "count_24h": 7.0, "distance": None}
        return {
            "decision": {
                "decision_id": name,
                "kind": "score",
                "decided_at": at,
                "score": 0.25,
                "ruled_score": None,
                "decision": "approve",
                "fallback_source": "static" if name == "fell-back" else "",
                "rules": [{"id": "many"}],
            },
            "features": [
                {"name": key, "value": value, "withheld": value is None} for key, value in values.items()
            ],
        }

    monkeypatch.setattr(world.service.decisions, "find", found)
    text = WIDER.replace("hour < 6.0", "hour < 6.0 && score < 0.3")
    asked = BenchRules(text=text, decisions=["payment-1", "fell-back"])
    one, other = world.service.authoring.bench(world.actor("viewer"), world.candidate, asked).rows
    assert (one.decision_id, one.decided_at, one.withheld) == ("payment-1", at, 1)
    assert one.recorded is not None and one.recorded.fired == ("many",) and one.recorded.score == 0.25
    assert one.before.fired == ("many",) and one.before.score == 0.25
    assert one.after.fired == ("many", "night") and one.after.score == 0.5
    # Without a score, a condition that reads it is unknown.
    assert other.after.score is None and other.after.unknown == 1
    assert math.isnan(recorded_request(found(None, "fell-back", checkpoint=None)).score or 0.0)


def test_saving_makes_a_revision_and_a_test_that_runs_the_cases(world: World) -> None:
    saved = save(world, WIDER)
    assert saved.change.state is ChangeState.CHECKS and saved.waits == ""
    assert saved.change.title == "A wider night" and saved.change.bundle == saved.bundle.digest
    path, base = (world.service.bundles.local(one) for one in (saved.bundle.digest, world.candidate))
    manifest, before = read_manifest(path), read_manifest(base)
    assert manifest.files["forest.bin"] == before.files["forest.bin"]
    assert manifest.lineage.revision_of == world.candidate
    notes = manifest.lineage.revision_notes
    assert (notes["author"], notes["note"]) == ("modeler", "A wider night\nfor the holidays")
    rules, own = stored_rules(path), stored_rules(base)
    assert rules is not None and own is not None
    assert (rules.text, rules.lists, rules.salt) == (WIDER, own.lists, own.salt)
    document = world.service.authoring.document(world.actor("viewer"), saved.bundle.digest)
    assert document.cases == CASES and document.revision is not None
    assert (document.revision.base, document.revision.change) == (world.candidate, saved.change.id)
    entries = world.service.audit.entries(world.actor("admin"), limit=20)
    assert {"rules.save", "bundle.revise", "change.draft"} <= {one.action for one in entries}
    world.until(saved.change.id, ChangeState.BOOKED, ChangeState.DEPLOYING, ChangeState.OBSERVING)
    steps = world.service.changes.get(world.actor("viewer"), saved.change.id).steps
    (golden,) = (one for one in steps if one.name == "golden")
    assert "all 1 of the author's cases pass" in golden.words


def test_a_change_whose_cases_fail_is_refused_by_the_checks(world: World) -> None:
    from sqlalchemy import update

    from scorer.release.store import tables as t

    saved = save(world, WIDER, submit=False)
    assert saved.change.state is ChangeState.DRAFT
    with world.platform.store.write() as connection:
        wrong = CASES.replace('["night"]', '["many"]')
        connection.execute(update(t.rule_revisions).values(cases=wrong))
    world.service.changes.submit(world.actor("modeler"), saved.change.id)
    ended = world.until(saved.change.id, ChangeState.REJECTED, ChangeState.OBSERVING)
    assert ended.state is ChangeState.REJECTED and "author's cases failed" in ended.note


def test_what_is_wrong_is_refused_before_anything_is_saved(world: World) -> None:
    before = len(world.service.bundles.list(world.actor("admin")))
    for text, fields, words in (
        (RULES, {}, "change them first"),
        (RULES.replace("hour <", "huor <"), {}, "unknown name"),
        (WIDER.replace("< 6.0", "< 2.0"), {}, "1 of 1 failed"),
        (WIDER, {"cases": "x"}, "not valid TOML"),
        (WIDER, {"note": " \n "}, "reason: write"),
    ):
        with pytest.raises(InvalidError, match=words):
            save(world, text, **fields)
    for user in ("viewer", "outsider"):
        with pytest.raises((NotAllowedError, NotFoundError)):
            save(world, WIDER, user=user)
    assert len(world.service.bundles.list(world.actor("admin"))) == before
    assert not world.service.changes.list(world.actor("admin"))


def test_edits_of_the_same_rules_conflict_until_the_newer_ones_are_named(world: World) -> None:
    first = save(world, WIDER)
    later = RULES.replace("hour < 5.0", "hour < 7.0")
    with pytest.raises(ConflictError, match=f"modeler saved other rules .* {first.bundle.digest[7:19]}"):
        save(world, later, user="owner")
    lines = world.service.authoring.difference(world.actor("viewer"), first.bundle.digest, later)
    assert '-when = "hour < 6.0"' in lines and '+when = "hour < 7.0"' in lines
    second = save(world, later, user="owner", over=first.bundle.digest)
    assert second.bundle.digest != first.bundle.digest
    with pytest.raises(ConflictError, match=second.bundle.digest[7:19]):
        save(world, RULES.replace("< 5.0", "< 5.5"), over=first.bundle.digest)
    # Withdrawn revisions do not stand in the way; a deleted draft does not either.
    for change in (second, first):
        world.service.changes.withdraw(world.actor("owner"), change.change.id, reason="no longer needed")
    third = save(world, RULES.replace("< 5.0", "< 5.5"), submit=False)
    world.service.changes.delete(world.actor("modeler"), third.change.id)
    save(world, RULES.replace("< 5.0", "< 5.2"))


def test_a_conflict_that_appears_while_the_revision_is_made_leaves_no_draft(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    authoring = world.service.authoring
    monkeypatch.setattr(authoring, "_check_newest", lambda *_: None)
    first = save(world, WIDER)
    with pytest.raises(ConflictError):
        save(world, RULES.replace("< 5.0", "< 7.0"), user="owner")
    assert [one.id for one in world.service.changes.list(world.actor("admin"))] == [first.change.id]


def test_a_freeze_leaves_the_saved_rules_as_a_draft(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConflictError("the slot is booked; choose another one")

    monkeypatch.setattr(world.service.changes, "submit", refuse)
    saved = save(world, WIDER)
    assert saved.change.state is ChangeState.DRAFT and "slot is booked" in saved.waits


def test_switches_are_small_edits_with_the_same_change_request(world: World) -> None:
    authoring, modeler = world.service.authoring, world.actor("modeler")
    until = datetime.now(UTC) + timedelta(days=2)
    asked = SwitchRule(to="snoozed", until=until, checkpoint=POINT, reason="a sale")
    snoozed = authoring.switch(modeler, "fraud", world.candidate, "night", asked)
    assert snoozed.change.title.startswith("Rule night snoozed until 20")
    text = authoring.document(modeler, snoozed.bundle.digest).text
    own = tomllib.loads(text)["rules"][1]
    assert own["snoozed_until"] == until.replace(microsecond=0) and "a bracket ] in a comment" in text
    again = SwitchRule(to="enabled", checkpoint=POINT, reason="the sale is over")
    enabled = authoring.switch(modeler, "fraud", snoozed.bundle.digest, "night", again)
    assert authoring.document(modeler, enabled.bundle.digest).text == RULES
    with pytest.raises(InvalidError, match="enabled already"):
        authoring.switch(modeler, "fraud", enabled.bundle.digest, "night", again)
    with pytest.raises(InvalidError, match="in the future"):
        authoring.switch(
            modeler, "fraud", enabled.bundle.digest, "night", asked.model_copy(update={"until": None})
        )
    with pytest.raises(NotFoundError, match='no rule "nihgt"'):
        authoring.switch(modeler, "fraud", enabled.bundle.digest, "nihgt", again)


@pytest.mark.parametrize(
    ("text", "works"),
    [
        ('[[rules]]\nid = "a"\nwhen = "x"\n', True),
        ('[[rules]] # one\nwhen = "x"\nid = "a" # its name', True),
        (
            '[[rules]]\nid = "b"\nwhen = """\n[[rules]]\nid = "a"\n"""\n[[rules]]\nid = "a"\nenabled = true',
            True,
        ),
        ('[[rules]]\nid = "a"\n[rules.remove]\nexemption = ["tra"]\n', True),
        ('rules = [{ id = "a", when = "x" }]\n', False),
    ],
)
def test_a_switch_changes_one_key_or_refuses(text: str, works: bool) -> None:
    if not works:
        with pytest.raises(InvalidError, match="edit the rule in the editor"):
            with_switch(text, "a", "enabled", False)
        return
    before, after = tomllib.loads(text), tomllib.loads(with_switch(text, "a", "enabled", False))
    at = next(number for number, one in enumerate(before["rules"]) if one["id"] == "a")
    assert after["rules"][at] == {**before["rules"][at], "enabled": False}
    after["rules"][at] = before["rules"][at]
    assert after == before


def test_grids_have_the_places_of_the_cells() -> None:
    (grid,) = table_grids(RULES)
    assert (grid.id, grid.hit, grid.inputs, grid.outputs) == (
        "limits",
        "first",
        ("amount", "hour"),
        ("decision",),
    )
    assert RULES[slice(*grid.inputs_at)] == '["amount", "hour"]'
    assert RULES[slice(*grid.rows_at)].endswith("# a bracket ] in a comment\n]")
    lines = RULES.splitlines()
    for row in grid.rows:
        for cell in row:
            assert lines[cell.line - 1][cell.column - 1 :].startswith(cell.text)
    assert [cell.text for cell in grid.rows[1]] == ['"[500..5000]"', '"> 3.0"', '"review"']
    assert table_grids("[[tables]") == () and table_grids('name = "x"') == ()
    # A table in another form has no grid.
    assert table_grids('tables = [{ id = "a", inputs = ["x"], outputs = ["reason"], rows = [] }]') == ()
    mixed = (
        '[[tables]]\nid = "a"\ninputs = ["x"]\noutputs = ["cap"]\nrows = [[1.5, 0.5], [\'a"\', """b\nc"""]]\n'
    )
    (grid,) = table_grids(mixed)
    assert [[cell.text for cell in row] for row in grid.rows] == [["1.5", "0.5"], ["'a\"'", '"""b\nc"""']]
