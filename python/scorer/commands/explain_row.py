"""``scorer explain row``: ask a running server for the exact contribution of each feature to a score."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.commands.features import read_features
from scorer.commands.output import print_json, print_table
from scorer.errors import ConfigError, ScorerError

if TYPE_CHECKING:
    from scorer.client.results import MarginExplanation, RowExplanation


class ExplainCommandError(ScorerError):
    """The server has not explained the row."""


def explain_row(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="Name of the checkpoint.")],
    features: Annotated[
        Path,
        typer.Argument(
            metavar="FEATURES",
            help='JSON file with the features by name, such as {"amount": 12.5}; null is a missing value. '
            '"-" reads standard input.',
            allow_dash=True,
        ),
    ],
    server: Annotated[
        str | None,
        typer.Option("--server", metavar="TARGET", help="host:port or unix:///path; default: --config."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file with the server's address.")] = None,
    action: Annotated[
        str, typer.Option(metavar="ID", help="At a checkpoint of kind action: the action to explain.")
    ] = "",
    against: Annotated[str, typer.Option(metavar="ID", help="Another action to compare with.")] = "",
    bundle: Annotated[
        str,
        typer.Option(
            metavar="DIGEST", help="A bundle of the checkpoint; default: the one with most traffic."
        ),
    ] = "",
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds to wait for the response.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain the score of one row: the exact contribution of each feature to its margin.

    The largest contribution is printed first. Baseline and contributions add up to the margin. With --against
    the contributions explain the difference between both actions.
    """
    from scorer.client import Client, ClientError
    from scorer.credentials import ClientTls

    values = read_features(features)
    target = server or _target(config)
    tls = None if target.startswith("unix:") else ClientTls.from_environment()
    credentials = None if tls is None else tls.channel_credentials()
    try:
        with Client(target, timeout=timeout, credentials=credentials) as client:
            found = client.explain(checkpoint, values, action=action, against=against, bundle=bundle)
    except ClientError as error:
        raise ExplainCommandError(str(error)) from None
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        _print(found)


def _target(config: Path | None) -> str:
    from scorer.commands.health import target_of
    from scorer.config import load

    if config is None:
        raise ConfigError("no server is given; use --server host:port, or --config FILE")
    return target_of(load(config).server)


def _print(found: RowExplanation) -> None:
    shown = found.difference or found.explanation
    typer.echo(f"bundle    {found.bundle}")
    for label, each in (("score", found.explanation), ("against", found.against)):
        if each is not None:
            name = f" of {each.action}" if each.action else ""
            typer.echo(
                f"{label:9} {each.score:.6g}{name} (margin {each.margin:.6g}, baseline {each.baseline:.6g})"
            )
    if found.faulted_functions:
        names = ", ".join(found.faulted_functions)
        typer.echo(f"functions without a result: {names}; the row has a missing value for each")
    print_table(("feature", "contribution"), _rows(shown), empty="no feature contributes")


def _rows(explanation: MarginExplanation) -> list[tuple[str, str]]:
    ordered = sorted(explanation.contributions.items(), key=lambda one: -abs(one[1]))
    return [(name, f"{amount:+.6f}") for name, amount in ordered if amount != 0.0]
