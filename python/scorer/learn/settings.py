"""`learn.toml`: what every step of learning is set to, one section per step.

A section is a pydantic model beside the code that it sets, composed here. Every
key has a default, so an empty file is a valid one; unknown keys are refused with
their line. `scorer learn config` prints the file from these models.
"""

from __future__ import annotations

import json
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from scorer.config.lines import key_lines
from scorer.config.problems import InvalidSettingsError, Problem, describe, dotted
from scorer.learn.ab.settings import AbSettings
from scorer.learn.gate.settings import GateSettings
from scorer.learn.guardrails.settings import GuardrailSettings
from scorer.learn.join.settings import JoinSettings
from scorer.learn.overlay.settings import OverlaySettings
from scorer.learn.schedule.settings import ScheduleSettings
from scorer.learn.section import Section
from scorer.learn.tracking import TrackingSettings
from scorer.learn.training.settings import TrainSettings


class LearnSettings(Section):
    """The whole file."""

    join: JoinSettings = JoinSettings()
    train: TrainSettings = TrainSettings()
    overlay: OverlaySettings = OverlaySettings()
    guardrails: GuardrailSettings = GuardrailSettings()
    gate: GateSettings = GateSettings()
    ab: AbSettings = AbSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    tracking: TrackingSettings = TrackingSettings()


def load(path: Path | None) -> LearnSettings:
    """Reads the file; None: every default.

    Raises:
        InvalidSettingsError: with every mistake found, each with its line.
    """
    if path is None:
        return LearnSettings()
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise _whole(str(path), "no such file; `scorer learn config` prints one to start from") from None
    except UnicodeDecodeError as error:
        raise _whole(str(path), f"byte {error.start} is not UTF-8; TOML is UTF-8 text") from None
    except OSError as error:
        raise _whole(str(path), f"cannot be read: {error.strerror}") from None
    return parse(text, where=str(path))


def parse(text: str, *, where: str = "learn.toml") -> LearnSettings:
    """Reads the settings from text; `where` names it in messages."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _whole(where, f"not valid TOML: {error}") from None
    try:
        return LearnSettings.model_validate(document)
    except ValidationError as error:
        lines = key_lines(text)
        problems = []
        for detail in error.errors(include_url=False):
            at, message = describe(detail, LearnSettings)
            line = next((lines[at[:n]] for n in range(len(at), 0, -1) if at[:n] in lines), 0)
            problems.append(Problem(line, f"{where}:{line}" if line else where, dotted(at), message))
        raise InvalidSettingsError(problems) from None


def example() -> str:
    """A complete, commented file: every key at its default."""
    head = "# Settings of `scorer learn`. Every key is at its default; what is commented out is an example.\n"
    return head + "".join(_tables(LearnSettings(), ()))


def _tables(section: BaseModel, path: tuple[str, ...]) -> Iterator[str]:
    """Tables in the order in which TOML needs them: a table's own keys before its tables."""
    fields = type(section).model_fields
    own = {name: field for name, field in fields.items() if not _is_table(getattr(section, name))}
    if path:
        about = (type(section).__doc__ or "").strip().splitlines()[0]
        yield f"\n# {about}\n[{'.'.join(path)}]\n"
        yield from (_entry(name, field, getattr(section, name)) for name, field in own.items())
    for name in fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _tables(value, (*path, name))
        elif _is_table(value):
            for line in textwrap.wrap(fields[name].description or "", 104):
                yield f"\n# {line}"
            for item in value:
                yield f"\n[[{'.'.join((*path, name))}]]\n"
                yield from (f"{key} = {_toml(one)}\n" for key, one in item.model_dump(mode="json").items())


def _is_table(value: Any) -> bool:
    if isinstance(value, BaseModel):
        return True
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], BaseModel)


def _entry(name: str, field: FieldInfo, value: Any) -> str:
    lines = [f"# {line}\n" for line in textwrap.wrap(field.description or "", 104)]
    if value is None:
        shown = (field.examples or ["off"])[0]
        return "".join([*lines, f"# {name} = {_toml(shown)}\n"])
    return "".join([*lines, f"{name} = {_toml(value)}\n"])


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        inside = ", ".join(f"{dotted((key,))} = {_toml(one)}" for key, one in value.items())
        return "{ " + inside + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(str(value) if isinstance(value, Path) else value)


def _whole(where: str, message: str) -> InvalidSettingsError:
    return InvalidSettingsError([Problem(0, where, "", message)])
