"""``scorer causal merchants``: values and adoptions of merchants, from exported decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scorer.commands.progress import work_bar


def merchants(
    decisions: Annotated[
        Path,
        typer.Argument(
            metavar="DECISIONS", help="Parquet file of `scorer log export`, or directory of such files."
        ),
    ],
    default: Annotated[
        list[str],
        typer.Option(
            metavar="DIGEST",
            help="Bundle of the default policy, by the first digits of its digest; repeatable.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Directory for the tables and the task.")
    ],
    merchant: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the merchant.")] = "entity",
    outcome: Annotated[
        str, typer.Option(metavar="COLUMN", help="Column of the outcome, 0 to 1.")
    ] = "outcome_authorised",
    amount: Annotated[
        str, typer.Option(metavar="COLUMN", help='Column of the amount; "": each decision counts 1.')
    ] = "feature_amount",
    margin: Annotated[float, typer.Option(help="Share of the amount that is earned.")] = 1.0,
    least_share: Annotated[
        float,
        typer.Option(
            help="Smallest share of other policies in a month with which a merchant adopts.", min=0, max=1
        ),
    ] = 0.05,
    currency: Annotated[str, typer.Option(help='Currency of the amounts, such as "EUR".')] = "",
) -> None:
    """Write the table of merchants by month, those that adopted another policy, and a task that reads them.

    A merchant adopts in the first month in which a policy other than the default one decided its payments.
    Then run `scorer causal delta-cv DIR/values.parquet --task DIR/task.toml -o report.html`.
    """
    from scorer.causal.merchants import MerchantSettings, merchant_tables

    settings = MerchantSettings(tuple(default), merchant, outcome, amount, margin, least_share, currency)
    with work_bar("merchants") as bar:
        found = merchant_tables(
            decisions,
            output,
            settings,
            (lambda step, share: bar(step, round(share * 100), 100)) if bar else lambda _step, _share: None,
        )
    typer.echo(
        f"{found.merchants:,} merchants in {found.months} months, {found.adopters:,} adopters, "
        f"{found.decisions:,} decisions ({found.without_outcome:,} without an outcome)"
    )
    typer.echo(f"scorer causal delta-cv {output}/values.parquet --task {output}/task.toml -o report.html")
