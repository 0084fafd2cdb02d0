"""``scorer rules cost``: the time that each rule needs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.bundle.rule_costs import BATCHES, LONGEST, MOST_BATCHES, SECONDS
from scorer.commands.log_options import ReaderKeyFile, moment, reader_key
from scorer.commands.output import print_json, print_table
from scorer.commands.progress import bytes_bar
from scorer.commands.rule_options import LIST_OPTION, compiled
from scorer.errors import BundleError
from scorer.log.rule_requests import MOST

if TYPE_CHECKING:
    from scorer.bundle import Bundle
    from scorer.bundle.rule_costs import RuleCosts
    from scorer.bundle.rules import CompiledRules


def cost(
    source: Annotated[
        Path,
        typer.Argument(metavar="BUNDLE|FILE", help="Bundle with rules, or TOML file of rules with --bundle."),
    ],
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle", "-b", metavar="DIR", help="Bundle that the rules of a file are compiled for."
        ),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(
            "--log",
            "-l",
            metavar="DIR",
            help="Decision log whose decisions are evaluated; repeatable. Default: the golden cases.",
        ),
    ] = None,
    rule_list: Annotated[list[str] | None, LIST_OPTION] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Leave out decisions before this time.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Leave out decisions at or after this time.")
    ] = None,
    rows: Annotated[
        int, typer.Option(min=1, max=MOST, metavar="N", help="Number of decisions to read from the logs.")
    ] = 1000,
    batches: Annotated[
        int, typer.Option(min=1, max=MOST_BATCHES, metavar="N", help="Number of batches of each rule.")
    ] = BATCHES,
    seconds: Annotated[
        float,
        typer.Option(min=0, max=LONGEST, metavar="S", help="Time limit, after which no batches begin."),
    ] = SECONDS,
    top: Annotated[
        int, typer.Option(min=0, metavar="N", help="Rows of the table, the most expensive first; 0: all.")
    ] = 0,
    private_key: ReaderKeyFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, in the order of evaluation.")] = False,
) -> None:
    """Measure the time that each rule needs on this machine, on one thread."""
    from scorer.bundle.rule_costs import golden_requests, measure_rules
    from scorer.log.rule_requests import recorded_requests

    directory, loaded, rules = _compiled(source, bundle, rule_list)
    if log:
        with bytes_bar("decisions") as advance:
            requests = recorded_requests(
                log,
                loaded,
                most=rows,
                since=moment("--since", since),
                until=moment("--until", until),
                reader_key=reader_key(private_key),
                advance=advance,
            )
    else:
        requests = golden_requests(directory, loaded)
    found = measure_rules(rules, requests, batches=batches, seconds=seconds)
    if json:
        print_json({"name": rules.name, **asdict(found)})
        return
    _show(rules.name, found, top)


def _compiled(
    source: Path, bundle: Path | None, lists: list[str] | None
) -> tuple[Path, Bundle, CompiledRules]:
    """Return the directory of a bundle, the bundle, and the rules to measure."""
    from scorer.bundle import verify

    if source.is_dir():
        if bundle is not None or lists:
            raise BundleError(
                f'"{source}" is a bundle with its own rules and lists; leave out --bundle and --list, or '
                "give the file of other rules"
            )
        loaded = verify(source)
        if loaded.rules is None:
            raise BundleError(f'bundle "{source}" has no rules; give a file of rules and --bundle')
        return source, loaded, loaded.rules
    if bundle is None:
        raise BundleError(f'rules "{source}": give the bundle that they are compiled for (--bundle)')
    loaded = verify(bundle)
    return bundle, loaded, compiled(source, lists, loaded)


def _show(name: str, found: RuleCosts, top: int) -> None:
    parts = found.most_expensive[: top or None]
    print_table(
        ["rule", "median µs", "p99 µs", "share", "instructions"],
        [
            [
                one.id if one.kind == "rule" else f"{one.id} (value)",
                f"{one.median_us:.4f}",
                f"{one.p99_us:.4f}",
                f"{100 * one.share:.1f} %",
                str(one.instructions),
            ]
            for one in parts
        ],
        empty="no rules",
    )
    typer.echo(
        f"{name}: {found.median_us:.3f} µs median and {found.p99_us:.3f} µs p99 of the whole set, on "
        f"{found.source} in {found.batches} batches"
    )
