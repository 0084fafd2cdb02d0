"""Validation of the settings of a checkpoint that is added to a running server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from scorer.config import CheckpointSettings, InvalidSettingsError
from scorer.config.fields import CheckpointName, Section
from scorer.config.problems import Problem, describe, dotted

_MOST = 65_536
"""Largest number of characters of the settings of one checkpoint."""


class _Checkpoints(Section):
    """The table `checkpoints` of `scorer.toml`, so that errors have the same key paths as those of a file."""

    checkpoints: dict[CheckpointName, CheckpointSettings] = Field(min_length=1)


def read(name: str, text: str, *, role: str) -> CheckpointSettings:
    """Return the settings of one checkpoint.

    Args:
        name: Name of the checkpoint.
        text: JSON object with the keys of a table `[checkpoints."NAME"]` of `scorer.toml`.
        role: Role of the server; a live server requires an alias.

    Raises:
        InvalidSettingsError: The settings are not valid. The error lists all problems.
    """
    if len(text) > _MOST:
        raise _fault(f"the settings have {len(text):,} characters; at most {_MOST:,} are allowed")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _fault(f"the settings are not JSON ({error}); give an object such as {_EXAMPLE}") from None
    return check(name, document, role=role)


def check(name: str, document: Any, *, role: str) -> CheckpointSettings:
    """Return the settings of one checkpoint, as `read`, from the parsed JSON object.

    Args:
        name: Name of the checkpoint.
        document: The parsed object.
        role: Role of the server; a live server requires an alias.

    Raises:
        InvalidSettingsError: The settings are not valid. The error lists all problems.
    """
    faults: list[Problem] = []
    if role == "live" and isinstance(document, dict) and not document.get("alias"):
        key = dotted(("checkpoints", name, "alias"))
        faults.append(Problem(0, "", key, "required, but not set; add alias"))
    try:
        made = _Checkpoints.model_validate({"checkpoints": {name: document}}, context={"base": Path.cwd()})
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            path, message = describe(detail, _Checkpoints)
            faults.append(Problem(0, "", dotted(path), message))
    if faults:
        raise InvalidSettingsError(faults)
    return made.checkpoints[name]


_EXAMPLE = '{"kind": "score", "alias": "fraud-refund@live"}'


def _fault(message: str) -> InvalidSettingsError:
    return InvalidSettingsError([Problem(0, "", "", message)])
