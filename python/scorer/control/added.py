"""Checkpoints that are added to a running server: the settings that a caller gives of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from scorer.config import CheckpointSettings, InvalidSettingsError
from scorer.config.fields import CheckpointName, Section
from scorer.config.problems import Problem, describe, dotted

_MOST = 65_536
"""Characters of the settings of one checkpoint."""


class _Checkpoints(Section):
    """The table of `scorer.toml` with one entry, so that errors name the same keys as those of the file."""

    checkpoints: dict[CheckpointName, CheckpointSettings] = Field(min_length=1)


def read(name: str, text: str, *, role: str) -> CheckpointSettings:
    """Return the settings of one checkpoint.

    Args:
        name: The checkpoint.
        text: JSON object with the keys of a table `[checkpoints."NAME"]` of `scorer.toml`.
        role: Of the server; a live one needs an alias.

    Raises:
        InvalidSettingsError: With every fault found.
    """
    if len(text) > _MOST:
        raise _fault(f"the settings have {len(text):,} characters; at most {_MOST:,} are allowed")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _fault(f"the settings are not JSON ({error}); give an object such as {_EXAMPLE}") from None
    return check(name, document, role=role)


def check(name: str, document: Any, *, role: str) -> CheckpointSettings:
    """Return the settings of one checkpoint from the object that `read` parses.

    Raises:
        InvalidSettingsError: With every fault found.
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
