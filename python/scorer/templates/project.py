"""Creation of a project folder from a template."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from scorer.errors import ScorerError

Kind = Literal["fraud", "action"]

_ROOT: Final = Path(__file__).parent
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST: Final = 40


class ProjectError(ScorerError):
    """A project folder cannot be created."""


def project_files(kind: Kind, name: str) -> Mapping[str, str]:
    """Return the text of each file of a project by its path below the project's folder.

    Args:
        kind: The template.
        name: Name of the project, of its bundles, and the second part of its checkpoint.

    Raises:
        ProjectError: The name is not allowed.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise ProjectError(
            f'project name "{name}": use lower-case letters, digits and single "-" between them, starting '
            f"with a letter, at most {_LONGEST} characters"
        )
    files = {}
    for folder in ("common", kind):
        for path in sorted((_ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                target = path.relative_to(_ROOT / folder).as_posix().replace("NAME", name)
                text = path.read_text(encoding="utf-8")
                files[target.replace("dot.", ".")] = text.replace("@NAME@", name)
    return dict(sorted(files.items()))


def check_place(directory: Path) -> None:
    """Check that a project can be created in a folder: it does not exist, or it is empty.

    Raises:
        ProjectError: It is a file, or contains something.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ProjectError(f'"{directory}" exists and is not an empty folder; choose another place')


def write_project(directory: Path, files: Mapping[str, str]) -> None:
    """Write the files of a project.

    Args:
        directory: The project's folder, which must not exist or must be empty.
        files: The text of each file by its path below the folder.

    Raises:
        ProjectError: The folder contains something, is a file, or cannot be written.
    """
    try:
        check_place(directory)
        for name, text in files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ProjectError(
            f'"{directory}" cannot be written ({error.strerror or error}); remove what is there and try again'
        ) from error
