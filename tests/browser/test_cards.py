"""The pages of explanations and model cards in a browser: charts, downloads, the form, hostile text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser import PHONE, WIDE, Visitor, chromium, serving
from bundles import FEATURES
from bundles import rows as contexts
from versions import History

from scorer.batch.inputs import SourceOptions
from scorer.explain.document import ExplanationSettings
from scorer.explain.running import explain_bundle
from scorer.release.cards.page import explanation_page
from scorer.release.requests import CardText

HOSTILE = "<script>document.title = 'owned'</script>\n# heading\nA second line."


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Iterator[History]:
    history = History(tmp_path_factory.mktemp("history"), built_bundles)
    directory = history.world.directory
    columns = contexts(400, seed=9).astype(float).T
    table = pa.table(dict(zip(FEATURES, columns, strict=True)))
    pq.write_table(table, directory / "payments.parquet")
    found = explain_bundle(
        history.world.bundles["second"],
        SourceOptions((directory / "payments.parquet",)),
        ExplanationSettings(rows=300, contributions=150, interaction_rows=20),
    )
    (directory / "explanation.html").write_text(explanation_page(found))
    service, modeler = history.world.service, history.world.actor("modeler")
    service.documents.explain(modeler, "fraud", history.second, found.model_dump(mode="json"))
    service.cards.describe(modeler, "fraud", history.second, CardText(purpose="Web shops.", limits=HOSTILE))
    yield history
    history.close()


@pytest.fixture(scope="module")
def site(history: History) -> Iterator[tuple[Any, str]]:
    with serving(history.world.app()) as address, chromium() as browser:
        yield browser, address


def visit(site: Any, history: History, user: str = "viewer", **options: Any) -> Visitor:
    browser, address = site
    visitor = Visitor(browser, address, **options)
    visitor.sign_in(history.world.tokens[user])
    return visitor


def own(digest: str) -> str:
    return f"/models/{digest.removeprefix('sha256:')}"


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_every_page_is_complete_and_accessible(site: Any, history: History, size: tuple[int, int]) -> None:
    visitor = visit(site, history, "modeler", size=size)
    for path in (
        own(history.second),
        f"{own(history.second)}/explanation",
        f"{own(history.second)}/card",
        f"{own(history.first)}/card",
        own(history.first),
    ):
        assert visitor.open(path) == 200, path
        assert visitor.basics() == [], path
        assert visitor.page.title() != "owned"
    visitor.check()
    visitor.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_have_no_violations(site: Any, history: History, dark: bool) -> None:
    pytest.importorskip("axe_playwright_python")
    visitor = visit(site, history, "modeler", dark=dark)
    for path in (f"{own(history.second)}/explanation", f"{own(history.second)}/card"):
        visitor.open(path)
        assert visitor.violations() == [], path
    visitor.close()


def test_figures_are_drawn_and_can_be_downloaded(site: Any, history: History) -> None:
    visitor = visit(site, history)
    visitor.open(f"{own(history.second)}/explanation")
    page = visitor.page
    figures = page.locator("figure.figure")
    assert page.locator("figure.figure .js-plotly-plot").count() == figures.count() > 3
    with page.expect_download() as pending:
        page.locator("#figure-importance").get_by_role("link", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(Path(pending.value.path()).read_text())))
    assert {row["feature"] for row in rows} == set(FEATURES)
    with page.expect_download() as pending:
        page.get_by_role("link", name="Download as JSON").click()
    document = json.loads(Path(pending.value.path()).read_text())
    assert document["bundle"] == history.second
    visitor.check()
    visitor.close()


def test_text_of_the_card_is_edited_by_modelers(site: Any, history: History) -> None:
    reader = visit(site, history)
    reader.open(f"{own(history.first)}/card")
    assert reader.page.get_by_text("Edit the text").count() == 0
    reader.close()
    visitor = visit(site, history, "modeler")
    visitor.open(f"{own(history.first)}/card")
    visitor.page.get_by_text("Edit the text").click()
    visitor.page.get_by_label("Intended use").fill("Payments of web shops.")
    visitor.page.get_by_label("Limits").fill(HOSTILE)
    visitor.press("Save")
    visitor.page.get_by_text("The text of the model card is saved.").wait_for()
    assert visitor.page.get_by_text("Payments of web shops.").first.is_visible()
    assert visitor.page.get_by_text("<script>").first.is_visible()
    with visitor.page.expect_download() as pending:
        visitor.page.get_by_role("link", name="Markdown").click()
    text = Path(pending.value.path()).read_text()
    assert "Payments of web shops." in text
    assert "\n# heading" not in text
    visitor.check()
    visitor.close()


def test_page_of_the_command_draws_every_figure(site: Any, history: History) -> None:
    browser, _ = site
    page = browser.new_context(viewport={"width": WIDE[0], "height": WIDE[1]}).new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request", lambda request: problems.append(request.url) if request.url.startswith("http") else None
    )
    page.goto((history.world.directory / "explanation.html").as_uri())
    page.wait_for_selector(".plotly .main-svg")
    drawn = page.locator(".plotly[data-from].js-plotly-plot")
    assert drawn.count() == page.locator(".plotly[data-from]").count() > 3
    assert problems == []
    page.close()
