"""``scorer explain``: global explanations of bundles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.output import check_directory, print_json, print_table, write_texts
from scorer.commands.progress import work_bar

if TYPE_CHECKING:
    from scorer.explain.document import GlobalExplanation

app = typer.Typer(
    help="Explain a bundle as a whole.",
    no_args_is_help=True,
    **TYPER_OPTIONS,
)

DOCUMENT = "explanation.json"
"""File with the document of an explanation."""
PAGE = "explanation.html"
_SHOWN = 15

Bundle = Annotated[Path, typer.Option(metavar="DIR", help="Directory of the bundle.")]
Inputs = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="INPUT",
        help="Parquet or CSV files, a directory of such files, or the directory of a Delta table.",
    ),
]
Sql = Annotated[str | None, typer.Option(metavar="QUERY", help="SELECT that DuckDB runs, instead of INPUT.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("global")
def explain_globally(
    bundle: Bundle,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help=f"Directory to create, with {DOCUMENT} and {PAGE}."
        ),
    ],
    inputs: Inputs = None,
    sql: Sql = None,
    action: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Of an action bundle: the action whose expected reward is explained."
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option(metavar="COUNT", min=1, max=100_000, help="Rows of the random sample.")
    ] = 2000,
    contributions: Annotated[
        int,
        typer.Option(metavar="COUNT", min=1, max=100_000, help="Rows with exact contributions."),
    ] = 1000,
    features: Annotated[
        int, typer.Option(metavar="COUNT", min=1, max=200, help="Features with curves.")
    ] = 20,
    interacting: Annotated[
        int, typer.Option(metavar="COUNT", min=0, max=30, help="Features whose pairs are examined.")
    ] = 8,
    depth: Annotated[
        int, typer.Option(metavar="COUNT", min=1, max=5, help="Depth of the surrogate tree.")
    ] = 3,
    seed: Annotated[int, typer.Option(metavar="NUMBER", min=0, help="Seed of the sample.")] = 0,
    json: Json = False,
) -> None:
    """Explain a bundle on rows: importance, curves, interactions and a surrogate tree.

    Reads the rows once and keeps a random sample. The same rows and seed give the same explanation.
    """
    from scorer.batch.inputs import SourceOptions
    from scorer.explain.document import ExplanationSettings
    from scorer.explain.running import explain_bundle
    from scorer.release.cards.page import explanation_page

    check_directory(output)
    limits = ExplanationSettings(
        rows=rows,
        contributions=contributions,
        features=features,
        interacting=interacting,
        depth=depth,
        seed=seed,
    )
    with work_bar("explaining") as progress:
        found = explain_bundle(
            bundle, SourceOptions(tuple(inputs or ()), sql), limits, action=action, progress=progress
        )
    written = {DOCUMENT: found.model_dump_json(indent=1) + "\n", PAGE: explanation_page(found)}
    write_texts(output, written)
    if json:
        print_json(found.model_dump(mode="json"))
        return
    _print(found, output)


def _print(found: GlobalExplanation, output: Path) -> None:
    entries = [
        (
            one.feature,
            "-" if one.mean is None else f"{one.mean:.4g}",
            "-" if one.low is None or one.high is None else f"{one.low:.4g} to {one.high:.4g}",
            f"{one.splits:,}",
        )
        for one in found.importance[:_SHOWN]
    ]
    print_table(("feature", "contribution", "95 % interval", "splits"), entries, empty="no features")
    pairs = [
        (f"{one.first} × {one.second}", f"{one.strength:.4g}", f"{one.share:.2f}")
        for one in found.interactions[:5]
        if one.strength > 0
    ]
    print_table(("interaction", "strength", "H"), pairs, empty="no examined features interact")
    tree = found.surrogate
    if tree.r_squared is not None:
        typer.echo(f"surrogate tree of depth {tree.depth}: {tree.r_squared:.1%} of the variance")
    for note in found.notes:
        typer.echo(note, err=True)
    typer.echo(f"{found.data.used:,} of {found.data.seen:,} rows, {output / PAGE}")
