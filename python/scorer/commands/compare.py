"""``scorer compare``: two bundles, or two change requests, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scorer.commands.output import print_json, print_table, short
from scorer.commands.platform_options import Json, Url, connected, plain

if TYPE_CHECKING:
    from scorer.release.model import GateResult
    from scorer.sdk.results import BundleComparison, ComparedSide, SwapSet

_SIDE = "Digest, at least four digits of one, name@alias, or a change request such as cr-000017."
_DIGITS = 5


def compare(
    left: Annotated[str, typer.Argument(metavar="LEFT", help=_SIDE)],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help=_SIDE)],
    all_rows: Annotated[
        bool, typer.Option("--all", help="Print properties that are the same on both sides too.")
    ] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Compare two bundles, two change requests, or one of each.

    Prints their properties, swap set and gates. `--json` also has the figures with their numbers.
    """
    with connected(url) as platform:
        found = platform.compare(left, right)
    if json:
        print_json(plain(found))
    else:
        _print(found, all_rows=all_rows)


def _print(found: BundleComparison, *, all_rows: bool) -> None:
    typer.echo(f"left   {_side(found.left)}")
    typer.echo(f"right  {_side(found.right)}")
    for note in found.notes:
        typer.echo(f"  {note}")
    typer.echo("")
    rows = [
        (one.group, one.name, _value(one.left), _value(one.right), one.change)
        for one in found.differences
        if all_rows or one.change != "same"
    ]
    print_table(
        ("group", "property", "left", "right", "change"), rows, empty="no property differs", width=160
    )
    if not all_rows and (same := len(found.differences) - len(rows)):
        typer.echo(f"{same:,} properties are the same; --all prints them")
    for figure in found.figures:
        typer.echo(f"{figure.title}: {figure.words}")
    if found.swaps is not None:
        _print_swaps(found.swaps)
    if found.gates:
        typer.echo("")
        gates = [(pair.metric, *_gate(pair.left), *_gate(pair.right)) for pair in found.gates]
        print_table(("gate", "left", "value", "right", "value"), gates, empty="no gates", width=160)


def _side(one: ComparedSide) -> str:
    words = f"{one.bundle.name} {short(one.bundle.digest)} ({one.bundle.kind})"
    if one.change is None:
        return f"{words}, no report"
    verdict = f", {one.change.verdict}" if one.change.verdict else ""
    return f"{words}, {one.change.id}{verdict}: {one.rows:,} observations"


def _print_swaps(swaps: SwapSet) -> None:
    typer.echo("")
    typer.echo(f"swap set: {swaps.words} {swaps.differing:,} of {swaps.decisions:,} decisions differ")
    counts = {
        "left only": swaps.left_only,
        "right only": swaps.right_only,
        "both": swaps.both,
        "neither": swaps.neither,
    }
    rows = [
        (name, f"{count:,}", f"{100 * count / max(swaps.decisions, 1):.2f} %")
        for name, count in counts.items()
        if count is not None
    ]
    if rows:
        print_table(("flagged by", "decisions", "share"), rows, empty="", width=160)


def _gate(gate: GateResult | None) -> tuple[str, str]:
    return ("-", "-") if gate is None else (str(gate.outcome), _value(gate.value))


def _value(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.{_DIGITS}g}"
    return str(value)
