"""Options of commands that read rules from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from scorer.errors import BundleError

LIST_OPTION: Any = typer.Option(
    "--list",
    metavar="NAME=FILE[:int]",
    help="List that the rules name, with one element per line, strings or ints; repeatable.",
)


def given_lists(given: Sequence[str] | None) -> dict[str, tuple[Path, str]]:
    """Return file and type of each list that is given as ``NAME=FILE`` or ``NAME=FILE:int``, by name.

    Args:
        given: The values of the option.

    Raises:
        BundleError: A value does not have that form, or a name occurs twice.
    """
    lists: dict[str, tuple[Path, str]] = {}
    for entry in given or ():
        name, _, rest = entry.partition("=")
        file, kind = (rest[:-4], "int") if rest.endswith(":int") else (rest, "string")
        if not name or not file:
            raise BundleError(f'list "{entry}" is not of the form NAME=FILE or NAME=FILE:int; correct it')
        if name in lists:
            raise BundleError(f'list "{name}" is given twice; remove one of the two')
        lists[name] = (Path(file), kind)
    return lists
