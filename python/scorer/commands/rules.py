"""``scorer rules``: check, test, backtest and edit rules, write them from packs, import and export them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands import rule_cost, rule_editing, rule_exchange, rule_packs
from scorer.commands.log_options import ReaderKeyFile, log_directory, moment, reader_key
from scorer.commands.output import print_json, print_table, when
from scorer.commands.progress import bytes_bar
from scorer.commands.registry import At
from scorer.commands.rule_options import LIST_OPTION, compiled, given_lists
from scorer.errors import BundleError

if TYPE_CHECKING:
    from scorer.bundle import Bundle
    from scorer.log.rule_backtest import RuleBacktest

app = typer.Typer(
    help="Check, test, backtest, edit, import and export rules.", no_args_is_help=True, **TYPER_OPTIONS
)
app.add_typer(rule_packs.app, name="packs")
app.command("import")(rule_exchange.import_)
app.command()(rule_cost.cost)
for _command in (
    rule_exchange.export,
    rule_editing.get,
    rule_editing.bench,
    rule_editing.save,
    rule_editing.snooze,
    rule_editing.retire,
    rule_editing.enable,
    rule_editing.history,
):
    app.command()(_command)

Rules = Annotated[
    Path, typer.Argument(metavar="FILE", help="TOML file of the rules, described in docs/rules.md.")
]
BundleDirectory = Annotated[
    Path,
    typer.Option(
        "--bundle", "-b", metavar="DIR", help="Bundle whose features, decisions and actions they use."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def check(
    file: Rules,
    bundle: BundleDirectory,
    rule_list: Annotated[list[str] | None, LIST_OPTION] = None,
    json: Json = False,
) -> None:
    """Run all static checks and show the rules. The exit code is 1 if there is a fault."""
    from scorer.bundle.rules import read_rules

    found = _bundle(bundle).check_rules(read_rules(file, given_lists(rule_list)))
    if isinstance(found, tuple):
        if json:
            faults = [
                {"rule": one.rule, "line": one.line, "column": one.column, "problem": one.problem}
                for one in found
            ]
            print_json({"ok": False, "faults": faults})
            raise typer.Exit(1)
        for fault in found:
            typer.echo(f"{file}: {fault}")
        raise BundleError(f'rules "{file}": {len(found)} faults; correct them')
    if json:
        rules = [
            {"id": one.id, "effect": one.effect, "source": one.source, "line": one.line}
            for one in found.rules
        ]
        print_json({"ok": True, "name": found.name, "rules": rules})
        return
    print_table(
        ["rule", "effect", "source", "line"],
        [[rule.id, rule.effect, rule.source or "", str(rule.line)] for rule in found.rules],
        empty="no rules",
    )
    typer.echo(f"ok {found.name}: {len(found.rules)} rules")


@app.command()
def test(
    file: Rules,
    cases: Annotated[
        Path, typer.Argument(metavar="CASES", help="TOML file of requests and their expected results.")
    ],
    bundle: BundleDirectory,
    rule_list: Annotated[list[str] | None, LIST_OPTION] = None,
    json: Json = False,
) -> None:
    """Evaluate rules on cases. The exit code is 1 if a result is not the expected one."""
    from scorer.bundle.check import read_schema
    from scorer.bundle.rule_cases import read_cases, run_cases

    loaded = _bundle(bundle)
    rules = compiled(file, rule_list, loaded)
    results = run_cases(read_cases(cases), rules, loaded, read_schema(bundle).features)
    failed = [result for result in results if not result.passed]
    if json:
        rows = [
            {"name": one.name, "fired": one.fired, "differences": one.differences, "passed": one.passed}
            for one in results
        ]
        print_json({"passed": len(results) - len(failed), "failed": len(failed), "cases": rows})
        raise typer.Exit(1 if failed else 0)
    for result in failed:
        for difference in result.differences:
            typer.echo(f"{result.name}: {difference}")
    never = [rule.id for rule in rules.rules if not any(rule.id in result.fired for result in results)]
    if never:
        typer.echo(f"no case has these rules: {', '.join(never)}", err=True)
    if failed:
        raise BundleError(f'cases "{cases}": {len(failed)} of {len(results)} failed; correct rules or cases')
    typer.echo(f"ok {len(results)} cases")


@app.command()
def backtest(
    file: Rules,
    bundle: BundleDirectory,
    log: Annotated[
        list[Path] | None,
        typer.Option("--log", "-l", metavar="DIR", help="Decision log; repeatable. Default: the server's."),
    ] = None,
    rule_list: Annotated[list[str] | None, LIST_OPTION] = None,
    amount: Annotated[
        str | None, typer.Option(metavar="FEATURE", help="Feature with the amount, for the bands.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Leave out decisions before this time.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Leave out decisions at or after this time.")
    ] = None,
    examples: Annotated[int, typer.Option(min=0, max=1000, help="Ids to show for each change.")] = 5,
    lists: Annotated[
        str,
        typer.Option(
            metavar="given|newest|recorded",
            help="Versions of external lists: `given` by --list (their file, or none), the `newest` of the "
            "registry, or for each decision the version that it `recorded`.",
        ),
    ] = "given",
    registry: At = None,
    private_key: ReaderKeyFile = None,
    json: Json = False,
) -> None:
    """Decide recorded decisions again with rules, and show which would change."""
    from scorer.commands.rule_lists import evaluated_lists
    from scorer.log.rule_backtest import backtest_rules

    loaded = _bundle(bundle)
    rules = compiled(file, rule_list, loaded)
    with evaluated_lists(lists, rules, registry, rule_list) as used, bytes_bar("backtest") as advance:
        result = backtest_rules(
            log or [log_directory(None)],
            loaded,
            used.rules,
            amount=amount,
            since=moment("--since", since),
            until=moment("--until", until),
            examples=examples,
            reader_key=reader_key(private_key),
            stored=used.stored,
            advance=advance,
        )
    result.evaluated_lists = dict(used.described)
    if json:
        print_json(result.document())
        return
    _show(result)


def _show(result: RuleBacktest) -> None:
    total = max(result.decisions, 1)
    typer.echo(
        f"{result.decisions} decisions, {result.changed} would change ({100 * result.changed / total:.2f} %)"
    )
    for count, what in (
        (result.fallbacks, "decisions of fallbacks are left out"),
        (result.others, "decisions of bundles with another schema, decisions or actions are left out"),
        (result.withheld, "decisions were decided again without their sensitive features"),
        (result.unknown, "times a rule did not fire because a value is missing"),
        (result.errors, "times a condition had no value"),
        (result.conflicts, "times rules of a group contradicted each other"),
    ):
        if count:
            typer.echo(f"{count} {what}")
    for rule, count in result.exhausted.items():
        typer.echo(
            f"{count} decisions without {rule}, whose daily budget was used up (one server for each log)"
        )
    changes = sorted(result.changes.values(), key=lambda one: (not one.changed, -one.count))
    kinds = sorted({kind for change in changes for kind in change.known})
    rows = [
        [
            f"{change.before} > {change.after}" if change.changed else f"{change.before}, unchanged",
            str(change.count),
            f"{100 * change.count / total:.2f} %",
            f"{change.amount:.2f}",
            *(f"{change.outcomes[kind]} of {change.known[kind]}" for kind in kinds),
            ", ".join(change.examples) if change.changed else "",
        ]
        for change in changes
    ]
    print_table(["change", "decisions", "share", "amount", *kinds, "examples"], rows, empty="no decisions")
    bands = Counter[tuple[str, str]]()
    for change in changes:
        if change.changed:
            bands.update({(f"{change.before} > {change.after}", band): n for band, n in change.bands.items()})
    if bands:
        print_table(["change", "amount", "decisions"], [[*key, str(n)] for key, n in bands.items()], empty="")
    names = [*result.rules, *sorted(result.hits_before.keys() - set(result.rules))]
    hits = [
        [rule, str(result.hits[rule]), str(result.hits_before[rule]), str(result.changed_by[rule])]
        for rule in names
    ]
    print_table(["rule", "decisions", "recorded", "changed"], hits, empty="no rules")
    if result.recorded_lists or result.evaluated_lists:
        print_table(
            ["list", "recorded version", "decisions", "first", "last", "evaluated with"],
            _list_rows(result),
            empty="no external lists",
        )
    if result.never:
        typer.echo(f"no effect on any decision: {', '.join(result.never)}")


def _list_rows(result: RuleBacktest) -> list[list[str]]:
    rows = [
        [
            one.name,
            str(one.version or "none loaded"),
            str(one.decisions),
            when(one.first_us // 1000),
            when(one.last_us // 1000),
            result.evaluated_lists.get(one.name, "not read by these rules"),
        ]
        for one in result.recorded_lists
    ]
    known = {one.name for one in result.recorded_lists}
    others = [(name, how) for name, how in result.evaluated_lists.items() if name not in known]
    return rows + [[name, "not recorded", "-", "-", "-", how] for name, how in others]


def _bundle(directory: Path) -> Bundle:
    from scorer.bundle import verify

    return verify(directory)
