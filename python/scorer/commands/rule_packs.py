"""``scorer rules packs``: show rule packs, and write the rule set of a bundle from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.output import print_json, print_table
from scorer.commands.rule_options import LIST_OPTION, given_lists
from scorer.errors import BundleError

if TYPE_CHECKING:
    from scorer.rule_packs.pack import RulePack

app = typer.Typer(
    help="Show packs of eligibility rules, and write the rule set of a bundle from them.",
    invoke_without_command=True,
    **TYPER_OPTIONS,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def packs(context: typer.Context, json: Json = False) -> None:
    """List the packs, if no command is given."""
    from scorer.rule_packs.pack import pack_names, read_pack

    if context.invoked_subcommand is not None:
        return
    found = [read_pack(name) for name in pack_names()]
    if json:
        print_json([_as_json(pack) for pack in found])
        return
    print_table(
        ["pack", "title", "rules", "features", "factors", "sources as of"],
        [
            [
                pack.name,
                pack.pack.title,
                str(len(pack.rules)),
                str(len(pack.features)),
                ", ".join(pack.factors),
                str(pack.pack.as_of),
            ]
            for pack in found
        ],
        empty="no packs",
    )


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the pack.")],
    mapping: Annotated[
        bool, typer.Option("--mapping", help="Print a mapping file to edit, for `write --mapping`.")
    ] = False,
    json: Json = False,
) -> None:
    """Show a pack's rules with their sources, the features and the values of factors that they need."""
    from scorer.rule_packs.mapping import mapping_template
    from scorer.rule_packs.pack import read_pack

    pack = read_pack(name)
    if mapping:
        typer.echo(mapping_template([pack]), nl=False)
        return
    if json:
        print_json(_as_json(pack))
        return
    typer.echo(f"{pack.pack.title}. Sources as of {pack.pack.as_of}.\n\n{pack.pack.about.strip()}\n")
    print_table(
        ["rule", "excludes actions with", "reads", "source"],
        [
            [
                rule.id,
                " and ".join(f"{factor} = {' or '.join(levels)}" for factor, levels in rule.remove.items()),
                ", ".join(pack.features_of([rule])),
                rule.source,
            ]
            for rule in pack.rules
        ],
        empty="no rules",
    )
    print_table(
        ["feature", "type", "unit", "meaning"],
        [[name, one.type, one.unit, one.about] for name, one in pack.features.items()],
        empty="no features",
    )
    print_table(
        ["factor", "value", "meaning"],
        [
            [name, level, meaning]
            for name, factor in pack.factors.items()
            for level, meaning in factor.values.items()
        ],
        empty="no factors",
    )
    limits = [value for value in pack.values if value.name.startswith("limits.")]
    print_table(["limit", "value", ""], [[one.name, one.expression, one.about] for one in limits], empty="")


@app.command()
def write(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of the packs.")],
    bundle: Annotated[
        Path,
        typer.Option(
            "--bundle", "-b", metavar="DIR", help="Action bundle whose features and actions they use."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write.")],
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="NAME=VALUE",
            help="The bundle's name or expression for a feature of a pack, its name for a factor, or "
            "FACTOR.VALUE=NAME[,NAME]; repeatable. Default: the same name.",
        ),
    ] = None,
    mapping: Annotated[
        Path | None,
        typer.Option(
            "--mapping", metavar="FILE", help="TOML file with the tables features, factors and levels."
        ),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option("--without", metavar="RULE", help="Rule to leave out; repeatable.")
    ] = None,
    own: Annotated[
        Path | None,
        typer.Option("--with", metavar="FILE", help="Own rule set to which the rules are added."),
    ] = None,
    rule_list: Annotated[list[str] | None, LIST_OPTION] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the rule set. Default: the packs' names.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a rule set with the rules of packs in the names of a bundle."""
    from scorer.bundle import Bundle, inspect
    from scorer.bundle.rules import BundleRules, read_lists, read_rules
    from scorer.durable import write_atomically
    from scorer.rule_packs.mapping import read_mapping
    from scorer.rule_packs.pack import read_pack
    from scorer.rule_packs.write import OwnRules, pack_rules_text

    if output.exists() and not force:
        raise BundleError(f'"{output}" exists; choose another file, or replace it with --force')
    if own is not None and name is not None:
        raise BundleError("--name is for a new rule set; change the name in the file of --with")
    inspection = inspect(bundle)
    if not inspection.actions:
        raise BundleError(
            f'"{bundle}" is a bundle of scores; rules of packs are about the actions of a bundle'
        )
    text = pack_rules_text(
        [read_pack(one) for one in dict.fromkeys(names)],
        read_mapping(mapping, given or []),
        inspection.data.features,
        inspection.actions,
        without=without or [],
        own=None if own is None else OwnRules(str(own), read_rules(own).text),
        name=name,
    )
    rules = BundleRules(text, read_lists(given_lists(rule_list)))
    found = Bundle.load(inspection.path).check_rules(rules)
    if isinstance(found, tuple):
        faults = [f"{output}: {fault}" for fault in found]
        raise BundleError("\n".join([*faults, "nothing is written; correct the mapping or the own rules"]))
    write_atomically(output, text.encode())
    typer.echo(f"wrote {output}: {len(found.rules)} rules")
    typer.echo(f"next: scorer rules check {output} --bundle {bundle}")


def _as_json(pack: RulePack) -> dict[str, Any]:
    rules = [
        {
            "id": rule.id,
            "excludes": rule.remove,
            "features": list(pack.features_of([rule])),
            "source": rule.source,
        }
        for rule in pack.rules
    ]
    return {**pack.model_dump(mode="json", by_alias=True), "rules": rules}
