"""Reading a settings file into a pydantic model, with all errors reported by key and line."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ValidationError

from scorer.config.lines import key_lines
from scorer.config.problems import InvalidSettingsError, KeyPath, Problem, describe, dotted

M = TypeVar("M", bound=BaseModel)


class SettingsSource:
    """A parsed settings file with its text, for the line numbers of keys.

    Args:
        text: The settings in TOML.
        where: Name of the file for messages.
        base: Folder that relative paths start from; default: the working directory.

    Raises:
        InvalidSettingsError: The text is not TOML.
    """

    def __init__(self, text: str, *, where: str, base: Path | None = None) -> None:
        self.where, self.base = where, base or Path.cwd()
        self._text = text
        try:
            self.document: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InvalidSettingsError([_syntax(error, text, where)]) from None
        self.origins: dict[KeyPath, str] = {}
        """The origin of values that are not from the file, such as an environment variable, by key path."""

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, example: str) -> Self:
        """Read a file.

        Args:
            path: The TOML file.
            example: Command that prints an example, for the message if there is no such file.

        Raises:
            InvalidSettingsError: The file cannot be read, or is not TOML.
        """
        path = Path(path)
        try:
            text = path.read_bytes().decode("utf-8")
        except FileNotFoundError:
            raise _whole(path, f"no such file; `{example}` prints one to start from") from None
        except IsADirectoryError:
            raise _whole(path, "is a directory; name the TOML file in it") from None
        except UnicodeDecodeError as error:
            raise _whole(path, f"byte {error.start} is not UTF-8; TOML is UTF-8 text") from None
        except OSError as error:
            raise _whole(path, f"cannot be read: {error.strerror}") from None
        return cls(text, where=str(path), base=path.resolve().parent)

    def validate(
        self,
        model: type[M],
        *,
        context: Mapping[str, Any] | None = None,
        problems: Iterable[Problem] = (),
    ) -> M:
        """Validate the document and return the settings.

        Args:
            model: The model of the whole file.
            context: Values that are passed to validators in addition to `base`.
            problems: Errors that were found before; they are reported together with the model's.

        Raises:
            InvalidSettingsError: There are errors. All are listed, in the order of lines.
        """
        faults = list(problems)
        try:
            settings = model.model_validate(self.document, context={"base": self.base, **(context or {})})
        except ValidationError as error:
            faults += [self.problem(*describe(detail, model)) for detail in error.errors(include_url=False)]
        if faults:
            raise InvalidSettingsError(faults)
        return settings

    def problem(self, path: KeyPath, message: str) -> Problem:
        """Return an error at a key path, with the line, variable or option that set the value."""
        prefixes = [path[:length] for length in range(len(path), 0, -1)]
        # A variable replaces the whole value, so lines of the file below that key do not apply.
        for prefix in prefixes:
            if origin := self.origins.get(prefix):
                return Problem(0, origin, dotted(path), message)
        lines = key_lines(self._text)
        line = next((lines[prefix] for prefix in prefixes if prefix in lines), 0)
        return Problem(line, f"{self.where}:{line}" if line else self.where, dotted(path), message)


def _whole(path: Path, message: str) -> InvalidSettingsError:
    return InvalidSettingsError([Problem(0, str(path), "", message)])


def _syntax(error: tomllib.TOMLDecodeError, text: str, where: str) -> Problem:
    message = str(error)
    at: Any = re.search(r"\s*\(at line (\d+), column (\d+)\)$", message)
    if at:
        line, column = int(at.group(1)), int(at.group(2))
        message = message[: at.start()]
    else:
        message = re.sub(r"\s*\(at end of document\)$", " at the end of the file", message)
        line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
    return Problem(
        line, f"{where}:{line}:{column}", "", f"not valid TOML: {message[:1].lower()}{message[1:]}"
    )
