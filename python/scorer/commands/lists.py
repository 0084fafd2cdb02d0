"""``scorer lists``: publish, show, compare and remove versions of the external lists that rules read."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.output import print_json, print_table, short, size, when
from scorer.commands.registry import At, By, Json, Reason, open_at
from scorer.errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scorer.registry import RegistryBackend
    from scorer.registry.lists import ListVersion

app = typer.Typer(
    help="Publish and compare versions of lists that rules read.", no_args_is_help=True, **TYPER_OPTIONS
)

_HEADS = ("version", "type", "elements", "size", "digest", "published")


@app.command()
def put(
    name: Annotated[str, typer.Argument(metavar="NAME", help='Name of the list, as in list("name").')],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The elements, one per line.")],
    kind: Annotated[
        str | None,
        typer.Option("--type", help='"string" or "int"; default: the type of the version before, or string.'),
    ] = None,
    allow_shrink: Annotated[
        bool,
        typer.Option("--allow-shrink", help="Accept fewer than half of the elements of the version before."),
    ] = False,
    key: Annotated[
        list[Path] | None,
        typer.Option(
            "--key",
            help="File of a private key that signs the version; repeatable. Default: $SCORER_SIGNING_KEYS.",
        ),
    ] = None,
    registry: At = None,
    by: By = None,
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Publish a file as the next version of a list. Servers use it at their next poll of the registry."""
    from scorer.bundle.signing import configured_keys
    from scorer.registry import lists

    version, before = lists.put(
        open_at(registry), name, file, kind=_type(kind), allow_shrink=allow_shrink,
        keys=[str(one) for one in key] if key else configured_keys(), by=by, reason=reason,
    )  # fmt: skip
    if json:
        print_json({**asdict(version), "previous": before.version if before else 0})
        return
    if before == version:
        typer.echo(f"{name}: version {version.version} has this content already; nothing was published")
        return
    was = f"was version {before.version} with {before.elements:,}" if before else "the first version"
    typer.echo(f"{name}: version {version.version} with {version.elements:,} elements ({was})")


@app.command()
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Name of the list; default: all lists.")
    ] = None,
    registry: At = None,
    json: Json = False,
) -> None:
    """Show the newest version of every list, or all versions of one list, newest first."""
    from scorer.registry import lists

    store = open_at(registry)
    if name is None:
        newest = [one for name in lists.names(store) if (one := lists.newest(store, name))]
        if json:
            print_json([asdict(one) for one in newest])
            return
        print_table(("list", *_HEADS), [(one.name, *_cells(one)) for one in newest], empty="no lists")
        return
    found = lists.published(store, name)
    if json:
        print_json([asdict(one) for one in found])
        return
    print_table(_HEADS, [_cells(one) for one in found], empty="no versions")


@app.command()
def diff(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the list.")],
    before: Annotated[
        int | None, typer.Argument(metavar="[BEFORE]", help="Version; default: the one before the newest.")
    ] = None,
    after: Annotated[
        int | None, typer.Argument(metavar="[AFTER]", help="Version; default: the newest.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Compare the newest version with this file instead.")
    ] = None,
    registry: At = None,
    json: Json = False,
) -> None:
    """Count the elements that were added and removed between two versions, and show a few of them."""
    from scorer.registry.listdiff import difference
    from scorer.registry.lists import published

    if file is not None and before is not None:
        raise RegistryError("--file compares the newest version with a file; give no versions beside it")
    store = open_at(registry)
    versions = published(store, name)
    newest = versions[0].version
    wanted = newest if after is None else after
    if file is None and before is None and wanted == newest and len(versions) < 2:
        raise RegistryError(f'list "{name}" has one version, so there is nothing to compare; use --file')
    with tempfile.TemporaryDirectory(prefix="scorer-list-") as made:
        if file is not None:
            left, right = _elements(store, name, newest, Path(made)), file
        else:
            first = versions[1].version if before is None else before
            left = _elements(store, name, first, Path(made))
            right = _elements(store, name, wanted, Path(made))
        found = difference(left, right, versions[0].type)
    if json:
        print_json(asdict(found))
        return
    for count, what, examples in (
        (found.added, "added", found.added_examples),
        (found.removed, "removed", found.removed_examples),
    ):
        typer.echo(f"{count:,} {what}{': ' + ', '.join(examples) if examples else ''}")


@app.command()
def prune(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the list.")],
    keep: Annotated[
        int, typer.Option("--keep", min=1, metavar="N", help="Number of the newest versions that stay.")
    ],
    server: Annotated[
        list[str] | None,
        typer.Option(
            "--server",
            "-s",
            metavar="HOST:PORT",
            help="Control service of a server whose version in use stays; repeatable. Name every server.",
        ),
    ] = None,
    no_servers: Annotated[
        bool,
        typer.Option("--no-servers", help="No server follows the list: only aliases and --keep count."),
    ] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Remove the versions. Without it, they are only listed.")
    ] = False,
    registry: At = None,
    json: Json = False,
) -> None:
    """Remove old versions of a list from the registry. Without --apply, only list them.

    A version stays while an alias points to it or a server named by --server reports it as in use. Decisions
    that were made with a removed version can no longer be verified.
    """
    from scorer.registry import listprune

    if bool(server) == no_servers:
        raise typer.BadParameter("name each server with --server, or give --no-servers if there is none")
    store = open_at(registry)
    found = listprune.plan_pruning(store, name, keep, _in_use(name, server or ()))
    if apply:
        listprune.prune(store, found)
    if json:
        print_json({**asdict(found), "bytes": found.bytes, "applied": apply})
        return
    print_table(
        ("version", "stays because"),
        [(str(one.version.version), ", ".join(one.reasons)) for one in found.kept],
        empty="no version stays",
    )
    print_table(_HEADS, [_cells(one) for one in found.removed], empty="no version to remove")
    verb = "were removed" if apply else "would be removed; --apply removes them"
    if found.removed:
        typer.echo(f"{len(found.removed)} versions, {size(found.bytes)} {verb}")


def _in_use(name: str, servers: Sequence[str]) -> dict[str, list[str]]:
    """Return, by digest, the servers that report a version of the list as the one in use.

    Raises:
        ControlUnavailableError: A server does not respond, so that its version is not known.
    """
    from scorer.control import client
    from scorer.v1 import control_pb2 as pb

    found: dict[str, list[str]] = {}
    for address in servers:
        with client.connected(address) as stub:
            status = client.call(stub.GetStatus, pb.GetStatusRequest(), address)
        for one in status.lists:
            if one.name == name and one.digest:
                found.setdefault(one.digest, []).append(address)
    return found


def _elements(store: RegistryBackend, name: str, version: int, directory: Path) -> Path:
    from scorer.registry.lists import fetch, find_version

    place = directory / str(version)
    if place.exists():
        return next(place.glob("*.txt"))
    place.mkdir()
    return fetch(store, find_version(store, name, version).digest, place)


def _cells(version: ListVersion) -> tuple[str, ...]:
    return (
        str(version.version),
        version.type,
        f"{version.elements:,}",
        size(version.bytes),
        short(version.digest),
        when(version.published_at_ms),
    )


def _type(kind: str | None) -> Literal["string", "int"] | None:
    if kind is None or kind == "string":
        return None if kind is None else "string"
    if kind == "int":
        return "int"
    raise RegistryError(f'type "{kind}" is unknown; use string or int')
