"""``scorer registry``: store bundles, set aliases and restore their previous targets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.output import print_json, print_table, short, size, when

if TYPE_CHECKING:
    from scorer.registry import AliasChange, RegistryBackend

app = typer.Typer(help="Store bundles and point aliases to them.", no_args_is_help=True, **TYPER_OPTIONS)

At = Annotated[
    str | None,
    typer.Option(
        "--registry",
        "-r",
        metavar="DIR|URL",
        help="A directory or mlflow:http://host:port; default: $SCORER_REGISTRY__PATH or __URL, "
        "or the one of ./scorer.toml.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
By = Annotated[
    str | None, typer.Option("--by", help="User recorded in the history; default: the user of this process.")
]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Reason, recorded in the history.")]
Alias = Annotated[str, typer.Argument(metavar="NAME@ALIAS", help='For example "fraud-checkout@live".')]


@app.command()
def push(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory that `scorer bundle build` wrote.")
    ],
    alias: Annotated[
        str | None, typer.Option("--alias", help="Alias that is set to the bundle as well, for example live.")
    ] = None,
    registry: At = None,
    by: By = None,
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Verify a bundle and store it. Pushing it again changes nothing."""
    store = open_at(registry)
    digest = store.push(directory, by=by)
    record = store.show(digest).record
    if alias is not None:
        store.alias(record.name, alias, digest, by=by, reason=reason)
    if json:
        print_json({"digest": digest, "name": record.name, "alias": alias and f"{record.name}@{alias}"})
        return
    typer.echo(digest)
    if alias is not None:
        typer.echo(f"{record.name}@{alias} -> {short(digest)}")
    elif not record.aliases:
        typer.echo(f"next: scorer registry alias {record.name}@live {short(digest)}")


@app.command("list")
def list_bundles(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Name of the bundles; default: all.")
    ] = None,
    registry: At = None,
    json: Json = False,
) -> None:
    """List the bundles, newest first, with the aliases that point to them."""
    records = open_at(registry).list(name)
    if json:
        print_json([asdict(record) for record in records])
        return
    rows = [
        (
            short(r.digest),
            r.name,
            r.kind,
            size(r.bytes),
            f"{when(r.pushed_at_ms)} by {r.pushed_by}",
            " ".join(r.aliases) or "-",
        )
        for r in records
    ]
    print_table(("digest", "name", "kind", "size", "pushed", "aliases"), rows, empty="no bundles")


@app.command()
def show(
    reference: Annotated[
        str, typer.Argument(metavar="BUNDLE", help="name@alias, a digest, or an unambiguous prefix of one.")
    ],
    registry: At = None,
    json: Json = False,
) -> None:
    """Show a bundle with its lineage and the history of the aliases that pointed to it."""
    details = open_at(registry).show(reference)
    if json:
        print_json(
            {
                **asdict(details.record),
                "path": str(details.path),
                "manifest": details.manifest,
                "history": [asdict(change) for change in details.history],
            }
        )
        return
    record = details.record
    typer.echo(
        f"{record.digest}\n  {record.name}, kind {record.kind}, {size(record.bytes)}, built "
        f"{record.created_at}"
    )
    typer.echo(f"  pushed {when(record.pushed_at_ms)} by {record.pushed_by}")
    typer.echo(f"  in {details.path}")
    typer.echo(f"  aliases: {' '.join(record.aliases) or 'none'}")
    steps = [str(node.get("kind") or node) for node in details.manifest.get("program", ()) if node]
    if steps:
        typer.echo(f"  program: {' -> '.join(steps)}")
    _print_lineage(details.manifest.get("lineage") or {})
    typer.echo("")
    _print_history(details.history)


@app.command()
def alias(
    alias: Alias,
    bundle: Annotated[
        str,
        typer.Argument(metavar="BUNDLE", help="A digest, an unambiguous prefix of one, or another alias."),
    ],
    registry: At = None,
    by: By = None,
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Set an alias to a bundle. Servers that follow the alias verify the bundle and activate it."""
    from scorer.registry.reference import parse_alias

    target = parse_alias(alias)
    store = open_at(registry)
    change = store.alias(target.name, target.alias, bundle, by=by, reason=reason)
    if json:
        print_json(None if change is None else asdict(change))
    elif change is None:
        typer.echo(f"{alias} already points to {short(store.resolve(alias).digest)}")
    else:
        _print_change(change)


@app.command()
def rollback(
    alias: Alias,
    registry: At = None,
    by: By = None,
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Restore the previous target of an alias. Each call goes one change further back."""
    from scorer.registry.reference import parse_alias

    target = parse_alias(alias)
    change = open_at(registry).rollback(target.name, target.alias, by=by, reason=reason)
    if json:
        print_json(asdict(change))
    else:
        _print_change(change)


@app.command()
def history(
    alias: Annotated[str | None, typer.Argument(metavar="[NAME@ALIAS]", help="Alias; default: all.")] = None,
    registry: At = None,
    json: Json = False,
) -> None:
    """List every change of an alias, oldest first."""
    changes = open_at(registry).history(alias)
    if json:
        print_json([asdict(change) for change in changes])
    else:
        _print_history(changes)


@app.command()
def reindex(registry: At = None, by: By = None, json: Json = False) -> None:
    """Add bundles that the directory has and the SQLite file lacks, after verifying them."""
    from scorer.errors import RegistryError
    from scorer.registry import Registry

    store = open_at(registry)
    if not isinstance(store, Registry):
        raise RegistryError(f"{store.location} keeps its own index; only a directory is indexed again")
    added = store.reindex(by=by)
    if json:
        print_json(list(added))
    else:
        typer.echo("\n".join(added) or "nothing to add")


def open_at(location: str | None) -> RegistryBackend:
    """Open the registry of an option, of the environment or of ./scorer.toml."""
    from scorer.registry import open_registry

    for variable in ("SCORER_REGISTRY__URL", "SCORER_REGISTRY__PATH"):
        location = location or os.environ.get(variable)
    if not location and Path("scorer.toml").exists():
        from scorer import config

        location = config.load("scorer.toml").registry.location
    return open_registry(location or "registry")


def _print_change(change: AliasChange) -> None:
    typer.echo(f"{change.alias} -> {short(change.digest)} (was {short(change.previous)})")


def _print_history(changes: tuple[AliasChange, ...] | Any) -> None:
    rows = [
        (when(c.at_ms), c.alias, c.action, f"{short(c.previous)} -> {short(c.digest)}", c.by, c.reason or "-")
        for c in changes
    ]
    print_table(
        ("when", "alias", "change", "bundle", "by", "reason"), rows, empty="no alias has pointed to it"
    )


def _print_lineage(lineage: Mapping[str, Any]) -> None:
    for key, value in lineage.items():
        if isinstance(value, Mapping):
            text = ", ".join(f"{k} {v:.6g}" if isinstance(v, float) else f"{k} {v}" for k, v in value.items())
        else:
            text = str(value)
        if text:
            typer.echo(f"  {key.replace('_', ' ')}: {text}")
