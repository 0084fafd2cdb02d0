"""TOML files that a pydantic model describes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from scorer.errors import BundleError

_Model = TypeVar("_Model", bound=BaseModel)


def read_toml(file: Path, model: type[_Model], what: str) -> _Model:
    """Read a file and check it.

    Args:
        file: The TOML file.
        model: Its description.
        what: What the file has, in one word that the message begins with, such as ``cases``.

    Raises:
        BundleError: The file cannot be read or is not valid. The message has one line per error.
    """
    named = f'{what} "{file}"'
    try:
        text = file.read_text("utf-8")
    except OSError as error:
        raise BundleError(f"{named} cannot be read: {error.strerror}; correct the path") from None
    except UnicodeDecodeError as error:
        raise BundleError(f"{named} is not valid TOML: {error}; correct the file") from None
    return parse_toml(text, model, named)


def parse_toml(text: str, model: type[_Model], named: str) -> _Model:
    """Check the text of a TOML file.

    Args:
        text: The text.
        model: Its description.
        named: What the messages begin with.

    Raises:
        BundleError: The text is not valid. The message has one line per error.
    """
    try:
        return model.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise BundleError(f"{named} is not valid TOML: {error}; correct the file") from None
    except ValidationError as error:
        mistakes = [f"{named}: {'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        raise BundleError("\n".join(mistakes)) from None
