"""Options of commands that read rules from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from scorer.errors import BundleError

if TYPE_CHECKING:
    from scorer.bundle import Bundle
    from scorer.bundle.rules import CompiledRules, ListFile

LIST_OPTION: Any = typer.Option(
    "--list",
    metavar="NAME=FILE[:int]",
    help="List that the rules name, with one element per line, strings or ints; NAME=@[MINIMUM][:int] for an "
    "external list, of that version at least; repeatable.",
)


def given_lists(given: Sequence[str] | None) -> dict[str, ListFile | tuple[Path, str]]:
    """Return each list that is given as ``NAME=FILE[:int]`` or ``NAME=@[MINIMUM][:int]``, by name.

    Args:
        given: The values of the option.

    Raises:
        BundleError: A value does not have that form, or a name occurs twice.
    """
    from scorer.bundle.rules import ListFile

    lists: dict[str, ListFile | tuple[Path, str]] = {}
    for entry in given or ():
        name, _, rest = entry.partition("=")
        file, kind = (rest[:-4], "int") if rest.endswith(":int") else (rest, "string")
        if not name or not file:
            raise BundleError(f'list "{entry}" is not of the form NAME=FILE or NAME=FILE:int; correct it')
        if name in lists:
            raise BundleError(f'list "{name}" is given twice; remove one of the two')
        lists[name] = _external(entry, file[1:], kind) if file.startswith("@") else ListFile(Path(file), kind)
    return lists


def compiled(file: Path, lists: list[str] | None, bundle: Bundle) -> CompiledRules:
    """Compile rules for a bundle.

    Args:
        file: The file of the rules.
        lists: The lists, as in the command line.
        bundle: The bundle.

    Raises:
        BundleError: A file cannot be read, or the rules have faults. The message has one line per fault.
    """
    from scorer.bundle.rules import read_rules

    found = bundle.check_rules(read_rules(file, given_lists(lists)))
    if isinstance(found, tuple):
        raise BundleError("\n".join(f"{file}: {fault}" for fault in found))
    return found


def _external(entry: str, minimum: str, kind: str) -> ListFile:
    from scorer.bundle.rules import ListFile

    if minimum and not (minimum.isdecimal() and int(minimum) > 0):
        raise BundleError(f'list "{entry}": "{minimum}" is not a version; write NAME=@, or NAME=@12')
    return ListFile(None, kind, external=True, minimum_version=int(minimum) if minimum else None)
