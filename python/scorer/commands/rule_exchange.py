"""``scorer rules import`` and ``scorer rules export``: rule sets of other decision engines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.commands.rule_options import LIST_OPTION, given_lists
from scorer.errors import BundleError

if TYPE_CHECKING:
    from scorer.rule_exchange.mapping import RuleTarget

_Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write.")]
_Bundle = Annotated[
    Path,
    typer.Option(
        "--bundle", "-b", metavar="DIR", help="Bundle whose features, decisions and actions the rules use."
    ),
]
_Doubles = Annotated[
    bool,
    typer.Option(
        "--doubles", help="Allow arithmetic, whose last digits differ between decimals and doubles."
    ),
]
_Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]


def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="JDM graph (.json) or DMN 1.3 to 1.5 (.dmn, .xml).")
    ],
    bundle: _Bundle,
    output: _Output,
    mapping: Annotated[
        Path | None,
        typer.Option(
            "--map", metavar="FILE", help="TOML file that maps names, outputs and decisions to the bundle's."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the rule set. Default: the file's name.")
    ] = None,
    doubles: _Doubles = False,
    force: _Force = False,
) -> None:
    """Write the rule set of a JDM graph or of DMN decision tables. What cannot be expressed is refused."""
    from scorer.bundle import verify
    from scorer.bundle.rules import BundleRules
    from scorer.durable import write_atomically
    from scorer.rule_exchange.importing import import_rules
    from scorer.rule_exchange.mapping import read_import_mapping

    _check_new(output, force)
    text = import_rules(file, _target(bundle), read_import_mapping(mapping), name=name, doubles=doubles)
    found = verify(bundle).check_rules(BundleRules(text))
    if isinstance(found, tuple):
        faults = [f'rules "{file}": rule "{fault.rule}": {fault.problem}' for fault in found]
        raise BundleError("\n".join([*faults, "nothing is written; correct the file or the mapping"]))
    write_atomically(output, text.encode())
    typer.echo(f"wrote {output}: {len(found.rules)} rules")
    typer.echo(f"next: scorer rules check {output} --bundle {bundle}")


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML file of the rules.")],
    bundle: _Bundle,
    output: _Output,
    rule_list: Annotated[list[str] | None, LIST_OPTION] = None,
    doubles: _Doubles = False,
    force: _Force = False,
) -> None:
    """Write a rule set as a JDM graph, which zen-engine evaluates. What cannot be expressed is refused."""
    from scorer.bundle import verify
    from scorer.bundle.rules import read_rules
    from scorer.durable import write_atomically
    from scorer.rule_exchange.export import export_jdm

    _check_new(output, force)
    rules = read_rules(file, given_lists(rule_list))
    found = verify(bundle).check_rules(rules)
    if isinstance(found, tuple):
        raise BundleError("\n".join(f"{file}: {fault}" for fault in found))
    text = export_jdm(rules.text, _target(bundle), doubles=doubles)
    write_atomically(output, text.encode())
    typer.echo(f"wrote {output}")


def _check_new(output: Path, force: bool) -> None:
    if output.exists() and not force:
        raise BundleError(f'"{output}" exists; choose another file, or replace it with --force')


def _target(directory: Path) -> RuleTarget:
    from scorer.bundle import inspect, verify
    from scorer.rule_exchange.mapping import RuleTarget

    inspection, bundle = inspect(directory), verify(directory)
    decisions = tuple(reversed(bundle.labels)) if bundle.kind == "score" else ()
    return RuleTarget(inspection.data.features, decisions, inspection.actions)
