"""Tests that links, make targets and commands in the README exist."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from scorer.cli import app

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
# The other pages that people are sent to, held to the same rules.
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "deploy/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples/clients").glob("*/README.md")),
]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> list[str]:
    """Return the fenced code blocks of a page in these languages."""
    return [body for language, body in _FENCE.findall(page.read_text()) if language in languages]


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the commands of a page: lines of shell blocks, and inline code."""
    for block in blocks(page, "sh", "bash", "console"):
        joined = block.replace("\\\n", " ")
        prompted = re.findall(r"^\$ (.*)", joined, re.MULTILINE)
        # A block with prompts is a transcript. Its lines without a prompt are output.
        for line in prompted or joined.splitlines():
            yield from _words(line)
    for code in re.findall(r"`((?:make|scorer) [^`\n]+)`", _FENCE.sub("", page.read_text())):
        yield from _words(code)


def _words(line: str) -> Iterator[list[str]]:
    for command in re.split(r"&&|\|\||[|;]", line.split(" #", maxsplit=1)[0]):
        words = shlex.split(command)
        while words and "=" in words[0]:
            words.pop(0)
        if words:
            yield words


def heading_anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@every_page
def test_links_have_targets(page: Path) -> None:
    text = _FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{target} does not exist"
        assert linked.is_relative_to(ROOT), f"{target} is outside of the repository"
        if anchor and linked.suffix == ".md":
            assert anchor in heading_anchors(linked), f"{target}: no such heading"


@every_page
def test_make_targets_exist(page: Path) -> None:
    makefiles = [ROOT / "Makefile"]
    if "scorer new " in page.read_text():
        makefiles.append(ROOT / "python/scorer/templates/common/Makefile")
    rules = "\n".join(file.read_text() for file in makefiles)
    targets = set(re.findall(r"^([a-z0-9-]+):", rules, re.MULTILINE))
    for words in commands(page):
        if words[0] == "make":
            named = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
            assert set(named) <= targets, words


@every_page
def test_commands_and_their_options_exist(page: Path) -> None:
    for words in commands(page):
        if words[0] == "scorer":
            _check_command(words[1:])


def _check_command(words: list[str]) -> None:
    """Check a command and its options against the command line's tree."""
    command: Any = typer.main.get_command(app)
    rest = words
    while hasattr(command, "get_command") and rest and not rest[0].startswith("-"):
        # `scorer bundle build|verify|inspect` stands for three commands.
        names, rest = rest[0].split("|"), rest[1:]
        commands = [command.get_command(None, name) for name in names]
        assert None not in commands, f"scorer {' '.join(words)}: no such command"
        if len(names) > 1:
            return
        [command] = commands
    known = {
        option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]
    }
    for word in rest:
        if word.startswith("--"):
            assert word.partition("=")[0] in known | {"--help"}, f"scorer {' '.join(words)}: {word}"


@every_page
def test_python_examples_are_valid(page: Path) -> None:
    for block in blocks(page, "python"):
        ast.parse(block)


def test_every_decision_is_in_the_index() -> None:
    index = (ROOT / "docs/adr/README.md").read_text()
    pages = sorted(page.name for page in (ROOT / "docs/adr").glob("0*.md"))
    assert re.findall(r"\]\((0[^)]+)\)", index) == pages
    assert [page[:4] for page in pages] == [f"{number:04}" for number in range(1, len(pages) + 1)]
