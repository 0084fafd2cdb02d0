"""``scorer explain``: explanations of rows and of whole bundles, and counterfactuals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.explain_row import explain_row
from scorer.commands.features import read_features
from scorer.commands.output import check_directory, print_json, print_table, write_texts
from scorer.commands.progress import work_bar

if TYPE_CHECKING:
    from scorer.explain.document import GlobalExplanation

app = typer.Typer(
    help="Explain a row or a bundle as a whole, and find what would change a decision.",
    no_args_is_help=True,
    **TYPER_OPTIONS,
)

app.command("row")(explain_row)

DOCUMENT = "explanation.json"
"""File with the document of an explanation, which `scorer card explain` stores."""
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


@app.command()
def counterfactual(
    payment: Annotated[
        Path, typer.Argument(metavar="PAYMENT", help="JSON file with the features of one request by name.")
    ],
    bundle: Bundle,
    change: Annotated[
        list[str],
        typer.Option(
            metavar="FEATURE",
            help="Feature that may be changed; repeatable. NAME, NAME=LOW..HIGH for a number, NAME=A,B for a "
            "category. NAME+ may only grow, NAME- only shrink, and NAME# must be whole (hours#=0..23).",
        ),
    ],
    label: Annotated[
        str | None,
        typer.Option(metavar="LABEL", help="Wanted decision, or a lower band; default: the lowest band."),
    ] = None,
    changes: Annotated[
        int, typer.Option(metavar="COUNT", min=1, max=5, help="Largest number of changed features.")
    ] = 3,
    evaluations: Annotated[
        int,
        typer.Option(metavar="COUNT", min=1, max=1_000_000_000, help="Changed rows that are scored at most."),
    ] = 2_000_000,
    json: Json = False,
) -> None:
    """Find the smallest change of a payment with which a bundle decides otherwise.

    Fewer changed features come first, then smaller changes. States whether the search was complete.
    """
    from dataclasses import asdict

    from scorer.bundle import encode
    from scorer.bundle.check import read_schema, verify
    from scorer.explain.counterfactual import find_counterfactual
    from scorer.explain.grammar import read_actionable

    actionable = [read_actionable(text) for text in change]
    verify(bundle)
    features = read_schema(bundle).features
    row = encode(features, _columns(payment, [feature.name for feature in features]))[0]
    with work_bar("searching") as progress:
        found = find_counterfactual(
            bundle,
            row,
            actionable,
            label=label,
            changes=changes,
            evaluations=evaluations,
            progress=None if progress is None else lambda done, most: progress("rows", done, most),
        )
    if json:
        print_json(asdict(found))
        return
    typer.echo(f"now: {found.label}, score {found.score:.6g}")
    if found.found is not None and found.found.changes:
        rows = [(one.feature, one.before, one.after) for one in found.found.changes]
        print_table(("feature", "now", "changed"), rows, empty="")
        typer.echo(f"then: {found.found.label}, score {found.found.score:.6g}")
    typer.echo(f"{found.words} {found.evaluations:,} changed rows were scored.")


def _columns(file: Path, names: list[str]) -> dict[str, list[object]]:
    """Read a payment as columns of one row. A feature that is left out is missing."""
    from scorer.errors import BundleError

    found = read_features(file)
    if unknown := sorted(set(found) - set(names)):
        raise BundleError(f'payment "{file}": the bundle has no feature "{unknown[0]}"; correct the name')
    for name, value in found.items():
        if isinstance(value, dict | list):
            raise BundleError(f'payment "{file}": {name} is no single value; write a number or text')
    return {name: [found.get(name)] for name in names}
