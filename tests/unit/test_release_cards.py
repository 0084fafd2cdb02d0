"""Explanations that are stored with bundles, and model cards made from the records."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bundles import FEATURES
from bundles import rows as contexts
from pydantic import TypeAdapter
from versions import CHECKPOINT, DATA, History

from scorer.batch.inputs import SourceOptions
from scorer.explain.document import ExplanationSettings, GlobalExplanation
from scorer.explain.running import explain_bundle
from scorer.release.card_answers import ModelCard
from scorer.release.cards.markdown import card_markdown
from scorer.release.cards.page import explanation_page, surrogate_rows
from scorer.release.errors import InvalidError, NotAllowedError, NotFoundError
from scorer.release.requests import CardText

SMALL = ExplanationSettings(rows=60, contributions=20, points=4, interaction_rows=5, resamples=20)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Iterator[History]:
    history = History(tmp_path_factory.mktemp("history"), built_bundles)
    yield history
    history.close()


def explained(history: History, name: str) -> dict[str, Any]:
    """Return the explanation of a bundle on 100 payments, as JSON."""
    file = history.world.directory / "payments.parquet"
    columns = contexts(100, seed=9).astype(float).T
    pq.write_table(pa.table(dict(zip(FEATURES, columns, strict=True))), file)
    found = explain_bundle(history.world.bundles[name], SourceOptions((file,)), SMALL)
    return json.loads(found.model_dump_json())


@pytest.fixture(scope="module")
def document(history: History) -> dict[str, Any]:
    return explained(history, "second")


def store(history: History, document: dict[str, Any], user: str = "modeler", project: str = "fraud") -> Any:
    documents = history.world.service.documents
    return documents.explain(history.world.actor(user), project, history.second, document)


def card(history: History, bundle: str, user: str = "viewer") -> ModelCard:
    return history.world.service.cards.card(history.world.actor(user), bundle)


def test_explanation_is_stored_beside_the_bundle(history: History, document: dict[str, Any]) -> None:
    world = history.world
    before = world.service.bundles.detail(world.actor("viewer"), history.second).manifest
    stored = store(history, document)
    assert (stored.bundle.digest, stored.by) == (history.second, "modeler")
    found = world.service.documents.explanation(world.actor("viewer"), history.second)
    assert found.document == document
    names = [figure.name for figure in found.figures]
    assert names == ["importance", "interactions", *(f"dependence-{at}" for at in range(1, len(names) - 1))]
    assert world.service.bundles.detail(world.actor("viewer"), history.second).manifest == before
    entry = next(
        one for one in world.service.audit.entries(world.actor("admin")) if one.action == "bundle.explain"
    )
    assert (entry.object, entry.project, entry.actor) == (history.second, "fraud", "modeler")
    json.dumps([figure.plotly for figure in found.figures], allow_nan=False)


def test_explanation_replaces_the_previous_one(history: History, document: dict[str, Any]) -> None:
    store(history, document)
    changed = {**document, "notes": ["The second one."]}
    store(history, changed)
    found = history.world.service.documents.explanation(history.world.actor("viewer"), history.second)
    assert found.document["notes"] == ["The second one."]


def test_explanation_needs_a_modeler_of_the_project(history: History, document: dict[str, Any]) -> None:
    with pytest.raises(NotAllowedError):
        store(history, document, "viewer")
    with pytest.raises(NotFoundError):
        store(history, document, "outsider")
    with pytest.raises(NotFoundError):  # The bundle is not visible from the other project.
        store(history, document, "outsider", "other")
    with pytest.raises(NotFoundError, match='project "other" has no bundle'):
        store(history, document, "admin", "other")


def test_bundle_of_two_projects_has_the_newest_document_of_those_that_the_reader_sees(
    history: History,
) -> None:
    world = history.world
    admin, cards = world.actor("admin"), world.service.cards
    cards.describe(admin, "fraud", history.first, CardText(purpose="Of fraud."))
    buffer = io.BytesIO(world.archive("first"))
    world.service.bundles.upload(world.actor("outsider"), "other", buffer)
    cards.describe(world.actor("outsider"), "other", history.first, CardText(purpose="Of other."))
    assert card(history, history.first, "outsider").text["purpose"] == "Of other."
    assert card(history, history.first, "viewer").text["purpose"] == "Of fraud."
    assert card(history, history.first, "admin").text["purpose"] == "Of other."


def test_explanation_of_another_bundle_is_refused(history: History) -> None:
    with pytest.raises(InvalidError, match=r"document.bundle: the document explains .*; explain this bundle"):
        store(history, explained(history, "first"))


def test_bundle_without_explanation(history: History) -> None:
    world = history.world
    with pytest.raises(NotFoundError, match="no explanation is stored"):
        world.service.documents.explanation(world.actor("viewer"), history.live)


def altered(document: dict[str, Any], *path: Any, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    inner: Any = changed
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), 2, "document.format: it is '2'"),
        (("more",), 1, "document.more: Extra inputs"),
        (("data", "used"), 0, r"document.data.used: .*greater than or equal to 1"),
        (("importance", 0, "mean"), float("nan"), "write finite numbers"),
        (("importance", 0, "mean"), float("inf"), "write finite numbers"),
        (("name",), "x" * 600, "document.name: .*at most 500"),
        (("surrogate", "nodes", 0, "left"), 0, "node 0 has the child 0, which does not make a tree"),
        (("surrogate", "nodes", 0, "left"), 2, "node 0 has the child 2, which does not make a tree"),
        (("surrogate", "nodes", 0, "right"), 900, "node 0 has the child 900"),
        (("surrogate", "nodes", 0, "left"), None, "node 0 has a part of a split"),
        (("surrogate", "nodes", 0, "threshold"), None, "node 0 needs either a threshold or a level"),
        (("surrogate", "nodes"), [], "at least 1 item"),
        (("dependence", 0, "points"), [], "at least 1 item"),
        (("notes",), ["x" * 400] * 60, "at most 50 items"),
        (("notes",), "x" * (5 << 20), "more than 4 MiB"),
    ],
)
def test_document_that_is_not_valid_is_refused(
    history: History, document: dict[str, Any], path: Any, value: Any, message: str
) -> None:
    with pytest.raises(InvalidError, match=message) as refused:
        store(history, altered(document, *path, value=value))
    assert "\n" not in str(refused.value)


def test_card_has_what_is_on_record(history: History, document: dict[str, Any]) -> None:
    store(history, document)
    found = card(history, history.second)
    assert found.lineage["data_digest"] == DATA[1]
    assert found.lineage["max_depth"] == "4"
    assert found.metrics["auc"] == 0.94
    assert [band["label"] for band in found.thresholds] == ["approve", "review", "decline"]
    assert found.lanes == (f"{CHECKPOINT}/canary",)
    (report,) = found.reports
    assert (report.change, report.rows, report.verdict) == (history.passed, 3_000, "pass")
    assert report.live_bundle == history.live
    assert any(gate.high is not None for gate in report.gates)
    assert found.explanation is not None
    assert found.explanation.document["data"]["used"] == 60
    assert [one.change for one in found.approvals] == [history.passed]
    plain = TypeAdapter(ModelCard).dump_python(found, mode="json")
    json.dumps(plain, allow_nan=False)
    text = card_markdown(found)
    assert history.second in text
    assert "| auc | 0.94 |" in text
    assert f"### {history.passed} (test) at fraud.checkout" in text
    for row in surrogate_rows(GlobalExplanation.model_validate(document).surrogate):
        assert row[1] in text


def test_card_without_records_says_what_it_lacks(history: History) -> None:
    found = card(history, history.world.candidate)
    assert found.explanation is None
    assert found.reports == ()
    text = " ".join(found.notes)
    assert "not written: intended use, not intended for, limits" in text
    assert "no final report" in text
    assert "No global explanation" in text
    assert "No change request of this bundle has been approved" in text
    for note in found.notes:
        assert note[:30] in card_markdown(found)


def test_card_changes_with_approvals_and_waivers(history: History) -> None:
    world = history.world
    change = world.awaiting_approval().id
    (before,) = card(history, world.candidate).approvals
    assert (before.change, before.state, before.approved_by) == (change, "report", None)
    assert before.submitted_by == "modeler"
    approver = world.actor("approver")
    world.service.changes.waive(approver, change, metric="error_rate", reason="The network was down.")
    world.service.changes.approve(approver, change)
    found = card(history, world.candidate)
    (after,) = found.approvals
    assert (after.state, after.approved_by) == ("approved", "approver")
    assert after.approved_at is not None
    assert after.waivers == ("error_rate by approver: The network was down.",)
    assert not any("has been approved" in note for note in found.notes)
    assert "| approver |" in card_markdown(found)
    world.service.changes.withdraw(world.actor("owner"), change, reason="done")
    assert card(history, world.candidate).approvals[0].state in ("rejected", "rolled back")


def test_text_of_the_author_is_kept_until_it_is_replaced(history: History) -> None:
    world = history.world
    cards = world.service.cards
    modeler = world.actor("modeler")
    found = cards.describe(modeler, "fraud", history.first, CardText(purpose="Web shops.", limits="No B2B."))
    assert (found.text["purpose"], found.text["limits"], found.text["data"]) == ("Web shops.", "No B2B.", "")
    assert (found.text_by, found.text_at is not None) == ("modeler", True)
    found = cards.describe(modeler, "fraud", history.first, CardText(purpose="Shops."))
    assert (found.text["purpose"], found.text["limits"]) == ("Shops.", "")
    assert card(history, history.first).text == found.text
    with pytest.raises(NotAllowedError):
        cards.describe(world.actor("viewer"), "fraud", history.first, CardText())
    with pytest.raises(NotFoundError):
        cards.card(world.actor("outsider"), history.second)


def test_markdown_is_escaped(history: History) -> None:
    hostile = (
        "# Title\n- item\n1. one\n<script>alert(1)</script> | [link](javascript:x) `code` ![i](x)\n=====\n*b*"
    )
    modeler = history.world.actor("modeler")
    found = history.world.service.cards.describe(modeler, "fraud", history.first, CardText(purpose=hostile))
    text = card_markdown(found)
    assert "\n# Title" not in text
    assert "\n- item" not in text
    assert "\n1. one" not in text
    assert "<script" not in text.replace("\\<script", "")
    assert "\n=====" not in text
    assert r"\[link\](javascript:x) \`code\`" in text


def test_page_of_an_explanation_has_every_figure_and_escapes_names(document: dict[str, Any]) -> None:
    changed = altered(document, "name", value="<script>alert(1)</script>")
    changed["notes"] = ["</script><b>"]
    page = explanation_page(GlobalExplanation.model_validate(changed))
    assert "<script>alert(1)" not in page
    assert "</script><b>" not in page
    for title in ("Importance", "Interactions", "Surrogate tree", "Provenance"):
        assert title in page
    for one in document["dependence"]:
        assert f"Dependence on {one['feature']}" in page
