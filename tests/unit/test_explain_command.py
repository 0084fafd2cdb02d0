"""``scorer explain global`` and ``scorer card``: their files, their output, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bundles import FEATURES
from bundles import rows as contexts
from platforms import World
from typer.testing import CliRunner, Result

from scorer.cli import app
from scorer.explain.document import GlobalExplanation

FEW = ["--rows", "50", "--contributions", "20", "--interacting", "2"]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.fixture(scope="module")
def payments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("payments") / "payments.parquet"
    columns = contexts(80, seed=9).astype(float).T
    pq.write_table(pa.table(dict(zip(FEATURES, columns, strict=True))), file)
    return file


@pytest.fixture(scope="module")
def explained(payments: Path, built_bundles: dict[str, Path]) -> Path:
    output = payments.parent / "explained"
    done = run("explain", "global", payments, "--bundle", built_bundles["score-2"], "-o", output, *FEW)
    assert done.exit_code == 0, done.output
    return output


@pytest.fixture(scope="module")
def platform(
    tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]
) -> Iterator[tuple[World, str]]:
    world = World(tmp_path_factory.mktemp("world"), built_bundles)
    with world.served() as url:
        yield world, url
    world.close()


@pytest.fixture
def modeler(platform: tuple[World, str], monkeypatch: pytest.MonkeyPatch) -> World:
    world, url = platform
    monkeypatch.setenv("SCORER_PLATFORM_URL", url)
    monkeypatch.setenv("SCORER_PLATFORM_TOKEN", world.tokens["modeler"])
    return world


def test_explanation_is_written_as_document_and_page(explained: Path) -> None:
    assert sorted(path.name for path in explained.iterdir()) == ["explanation.html", "explanation.json"]
    found = GlobalExplanation.model_validate_json((explained / "explanation.json").read_bytes())
    assert (found.data.source, found.data.seen, found.data.used) == ("payments.parquet", 80, 50)
    page = (explained / "explanation.html").read_text()
    assert "Surrogate tree" in page
    assert "http://" not in page.partition("<script")[0]


def test_rows_can_come_from_a_query(payments: Path, built_bundles: dict[str, Path], tmp_path: Path) -> None:
    query = f"SELECT * FROM '{payments}' LIMIT 30"
    done = run(
        "explain",
        "global",
        "--sql",
        query,
        "--bundle",
        built_bundles["score-2"],
        "-o",
        tmp_path,
        *FEW,
        "--json",
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["data"]["source"], found["data"]["seen"]) == ("query", 30)


def test_what_cannot_be_done_is_refused_before_any_work(
    payments: Path, built_bundles: dict[str, Path], tmp_path: Path
) -> None:
    bundle = built_bundles["score-2"]
    done = run("explain", "global", payments, "--bundle", bundle, "-o", payments)
    assert str(done.exception) == f'output "{payments}": it is a file; give a directory'
    done = run("explain", "global", "--bundle", bundle, "-o", tmp_path)
    assert "give either paths or a query" in str(done.exception)
    done = run("explain", "global", tmp_path / "none.csv", "--bundle", bundle, "-o", tmp_path)
    assert "there is no such file" in str(done.exception)
    done = run("explain", "global", payments, "--bundle", tmp_path / "none", "-o", tmp_path)
    assert "is not a directory" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_explanation_and_text_are_stored_and_the_card_is_exported(
    modeler: World, explained: Path, tmp_path: Path
) -> None:
    digest = modeler.candidate
    done = run("card", "explain", explained)
    assert done.exit_code == 0, done.output
    text = tmp_path / "card.toml"
    text.write_text('purpose = "Web shops."\nlimits = "No gift cards."\n')
    done = run("card", "describe", digest, text)
    assert done.exit_code == 0, done.output
    shown = run("card", "show", digest)
    assert shown.exit_code == 0, shown.output
    assert "Web shops." in shown.stdout
    assert "## Explanation" in shown.stdout
    done = run("card", "show", digest, "-o", tmp_path / "out" / "card.json")
    assert done.exit_code == 0, done.output
    card: dict[str, Any] = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["text"]["limits"] == "No gift cards."
    assert card["explanation"]["document"]["data"]["used"] == 50
    done = run("card", "show", digest[7:19], "-o", tmp_path / "card.md")
    assert (tmp_path / "card.md").read_text() == shown.stdout


def test_hostile_files_of_cards_are_refused(modeler: World, tmp_path: Path) -> None:
    text = tmp_path / "card.toml"
    for content, message in (
        ("purpose = 3\n", "purpose is not a text of a card"),
        ('author = "x"\n', "author is not a text of a card; there are purpose, not_for"),
        ("= broken", "it is no TOML"),
    ):
        text.write_text(content)
        assert message in str(run("card", "describe", modeler.candidate, text).exception)
    text.write_bytes(b"\xff\xfe")
    assert "it is no TOML" in str(run("card", "describe", modeler.candidate, text).exception)
    document = tmp_path / "explanation.json"
    for content, message in (
        ("[]", "it names no bundle"),
        ("{", "it is no JSON"),
        ("{}", "it names no bundle"),
    ):
        document.write_text(content)
        assert message in str(run("card", "explain", document).exception)
    document.write_text(json.dumps({"bundle": modeler.candidate, "format": 9}))
    assert "document.format" in str(run("card", "explain", tmp_path).exception)
    done = run("card", "show", modeler.candidate, "-o", tmp_path / "card.pdf")
    assert "the ending must be .md or .json" in str(done.exception)


def test_bundle_of_no_project_needs_the_name_of_one(modeler: World, tmp_path: Path) -> None:
    text = tmp_path / "card.toml"
    text.write_text('purpose = "x"\n')
    assert "name the project with --project" in str(run("card", "describe", modeler.live, text).exception)
    done = run("card", "describe", modeler.live, text, "--project", "fraud")
    assert 'project "fraud" has no bundle' in str(done.exception)
