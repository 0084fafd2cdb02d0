"""``scorer card``: model cards of bundles on a platform."""

from __future__ import annotations

import json as json_module
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.explain import DOCUMENT
from scorer.commands.output import print_json, short, write_texts
from scorer.commands.platform_options import Json, Url, connected, plain
from scorer.errors import BundleError

if TYPE_CHECKING:
    from scorer.sdk import PlatformClient

app = typer.Typer(
    help="Model cards of bundles: show, describe, explain.", no_args_is_help=True, **TYPER_OPTIONS
)

Reference = Annotated[
    str, typer.Argument(metavar="BUNDLE", help="Digest, at least four digits of one, or name@alias.")
]
Project = Annotated[
    str | None,
    typer.Option(
        "--project", "-p", help="Name of the project; default: the one that the bundle is listed in."
    ),
]


@app.command()
def show(
    bundle: Reference,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="File that ends with .md or .json."),
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show or export a model card, made from what is on record now."""
    from scorer.release.cards.markdown import card_markdown

    if output is not None and output.suffix not in (".md", ".json"):
        raise BundleError(f'output "{output}": the ending must be .md or .json; rename the file')
    with connected(url) as platform:
        card = platform.card(bundle)
    is_json = json or (output is not None and output.suffix == ".json")
    if output is None:
        if is_json:
            print_json(plain(card))
        else:
            typer.echo(card_markdown(card), nl=False)
        return
    text = json_module.dumps(plain(card), indent=1) + "\n" if is_json else card_markdown(card)
    write_texts(output.parent, {output.name: text})
    typer.echo(str(output))


@app.command()
def describe(
    bundle: Reference,
    text: Annotated[
        Path,
        typer.Argument(
            metavar="TEXT",
            help="TOML file with any of purpose, not_for, limits, data, fairness and contact.",
        ),
    ],
    project: Project = None,
    url: Url = None,
) -> None:
    """Store the author's text of a model card; it replaces the previous one."""
    sections = _sections(text)
    with connected(url) as platform:
        card = platform.describe_bundle(_project(platform, project, bundle), bundle, **sections)
    typer.echo(f"the text of {card.bundle.name} {short(card.bundle.digest)} is stored")


@app.command()
def explain(
    explanation: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help=f"Directory that `scorer explain global` wrote, or its {DOCUMENT}."
        ),
    ],
    project: Project = None,
    url: Url = None,
) -> None:
    """Store a global explanation with its bundle; it replaces the previous one."""
    document = _document(explanation)
    with connected(url) as platform:
        digest = str(document["bundle"])
        stored = platform.explain_bundle(_project(platform, project, digest), digest, document)
    typer.echo(f"the explanation of {stored.bundle.name} {short(stored.bundle.digest)} is stored")


def _project(platform: PlatformClient, given: str | None, bundle: str) -> str:
    if given is not None:
        return given
    found = platform.bundle(bundle).info
    if not found.project:
        raise BundleError(
            f"bundle {short(found.digest)} belongs to no project; name the project with --project"
        )
    return found.project


def _sections(file: Path) -> dict[str, str]:
    try:
        found = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise BundleError(f'text "{file}": it cannot be read: {error.strerror}') from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BundleError(f'text "{file}": it is no TOML: {error}; correct the file') from error
    from scorer.release.requests import CardText

    for name, value in found.items():
        if name not in CardText.model_fields or not isinstance(value, str):
            known = ", ".join(CardText.model_fields)
            raise BundleError(f'text "{file}": {name} is not a text of a card; there are {known}')
    return found


def _document(path: Path) -> dict[str, Any]:
    file = path / DOCUMENT if path.is_dir() else path
    try:
        found = json_module.loads(file.read_bytes())
    except OSError as error:
        raise BundleError(f'explanation "{file}": it cannot be read: {error.strerror}') from error
    except ValueError as error:
        raise BundleError(
            f'explanation "{file}": it is no JSON: {error}; explain the bundle again'
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("bundle"), str):
        raise BundleError(
            f'explanation "{file}": it names no bundle; give what `scorer explain global` wrote'
        )
    return found
