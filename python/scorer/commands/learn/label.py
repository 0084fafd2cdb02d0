"""``scorer learn label``: write the training table of a score checkpoint."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from scorer.commands.learn.experience_options import BundlePlaces
from scorer.commands.log_options import (
    LogOption,
    ReaderKeyFile,
    bundle_shelf,
    log_source,
    moment,
    reader_key,
)
from scorer.commands.output import print_json, print_table
from scorer.commands.progress import bytes_bar


def label(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Parquet file to write.")],
    checkpoint: Annotated[str, typer.Option(help="Checkpoint of the decisions.")],
    log: LogOption = None,
    bundles: BundlePlaces = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="Settings file (learn.toml) with [labels]; default: all defaults.",
        ),
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(help="Time as of which decisions are labelled; default: now.")
    ] = None,
    curves: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Maturity curves of an earlier labelling (--curves-output); default: they are estimated.",
        ),
    ] = None,
    curves_output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON file for the maturity curves that were used.")
    ] = None,
    private_key: ReaderKeyFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write the training table of a score checkpoint: features, labels and weights.

    The policy of [labels] determines which outcomes make a label, how long a decision waits for it, and what
    a decision without a label counts as. A bundle that is built from the table records the policy.
    """
    from scorer.learn import settings
    from scorer.learn.errors import DataError
    from scorer.learn.labels.curves import read_curves
    from scorer.learn.labels.table import write_labelled

    given = moment("--as-of", as_of)
    chosen = settings.load(config)
    with bytes_bar("labelling") as advance:
        found = write_labelled(
            log_source(log, chosen.source),
            bundle_shelf(bundles),
            chosen.labels,
            output,
            checkpoint=checkpoint,
            as_of_ms=int(time.time() * 1000) if given is None else round(given.timestamp() * 1000),
            curves=None if curves is None else read_curves(curves),
            advance=advance,
            reader_key=reader_key(private_key),
        )
    if curves_output is not None:
        if found.curves is None:
            raise DataError(
                "--curves-output: the policy needs no maturity curves, so there are none to write"
            )
        found.curves.write(curves_output)
    if json:
        print_json(found.notes)
        return
    counts = found.notes["counts"]
    typer.echo(
        f"{output}: {counts['table_rows']:,} rows of {counts['decisions']:,} decisions, weight "
        f"{counts['table_weight']:,.1f}, of it {counts['table_positive_weight']:,.1f} positive\n"
    )
    rows = [
        (name.replace("_", " "), f"{count:,}") for name, count in counts.items() if isinstance(count, int)
    ]
    print_table(("decisions", "number"), rows, empty="none")
    explored = [
        (
            rule,
            f"{one['share']:.3%}",
            f"{one['decisions']:,}",
            f"{one['positive']:,}",
            f"{one['amount']:,.2f}",
            f"{one['cost']:,.2f}",
        )
        for rule, one in found.notes["explored"].items()
    ]
    if explored:
        print_table(("explored by", "share", "decisions", "positive", "amount", "cost"), explored, empty="")
    left = {**found.notes["findings"], **found.notes["left_out"]}
    print_table(
        ("finding", "count"), [(name, f"{count:,}") for name, count in left.items()], empty="no findings"
    )
