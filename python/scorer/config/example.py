"""Generation of a complete, commented settings file from the fields of a settings model."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from scorer.config.problems import dotted, model_of

_WIDTH = 104
_SERVER = """\
# Settings of `scorer serve --config scorer.toml`.
# Every key has its default value; a key that is commented out shows an example.
# Relative paths start from this file's folder.
# Any key can be set by an environment variable, two underscores for a dot: SCORER_SERVER__LISTEN,
# SCORER_CHECKPOINTS__FRAUD_CHECKOUT__P99_MS. Check this file: `scorer config check scorer.toml`.
"""


def server_example() -> str:
    """Return a complete, commented `scorer.toml` as text."""
    from scorer.config.model import Settings

    checkpoints = {
        "fraud.checkout": {
            "kind": "score",
            "alias": "fraud-checkout@live",
            "durability": "async",
            "fallback": {"decision": "review", "score": 0.5},
        },
        "action.authorise": {
            "kind": "action",
            "alias": "action-authorise@live",
            "durability": "written",
        },
    }
    return example(Settings, _SERVER, {"checkpoints": checkpoints})


def example(model: type[BaseModel], head: str, samples: Mapping[str, Any] | None = None) -> str:
    """Return a settings file with every key at its default, explained by its description.

    Args:
        model: The whole file: a field per section, list of sections, or mapping of names to sections.
        head: Comment at the top.
        samples: Values to show for sections that have required keys: `{field: {key: value}}` for a list of
            sections, `{field: {name: {key: value}}}` for a mapping. The first name's keys are explained.
    """
    given = samples or {}
    return head + "".join(
        line for name, field in model.model_fields.items() for line in _section(name, field, given.get(name))
    )


def _section(name: str, field: FieldInfo, sample: Any) -> Iterator[str]:
    model = model_of(field.annotation)
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
        yield from _table(f"[{name}]", model, {}, (name,))
        return
    if set(sample) <= set(model.model_fields):
        yield from _table(f"[[{name}]]", model, sample, (name,))
        return
    for place, (key, values) in enumerate(sample.items()):
        heading = f"[{dotted((name, key))}]"
        if place == 0:
            yield from _table(heading, model, values, (name, key))
        else:
            yield f"\n{heading}\n"
            yield from (f"{own} = {toml(value)}\n" for own, value in values.items())


def _table(heading: str, model: Any, values: Any, path: tuple[str, ...]) -> Iterator[str]:
    """Yield the keys of a table and then its subtables, which is the order that TOML requires."""
    fields: Mapping[str, FieldInfo] = model.model_fields

    def value_of(name: str) -> Any:
        if isinstance(values, BaseModel):
            return getattr(values, name)
        return values.get(name, fields[name].get_default(call_default_factory=True))

    tables = [name for name in fields if _is_table(value_of(name))]
    about = (model.__doc__ or "").strip().splitlines()[0]
    yield f"\n# {about}\n{heading}\n"
    for name in fields:
        if name not in tables:
            yield from _entry(name, fields[name], value_of(name))
    for name in tables:
        value, inner = value_of(name), (*path, name)
        if isinstance(value, BaseModel):
            yield from _table(f"[{dotted(inner)}]", type(value), value, inner)
            continue
        for line in textwrap.wrap(fields[name].description or "", _WIDTH):
            yield f"\n# {line}"
        for item in value:
            yield f"\n[[{dotted(inner)}]]\n"
            yield from (f"{key} = {toml(one)}\n" for key, one in item.model_dump(mode="json").items())


def _entry(name: str, field: FieldInfo, value: Any) -> Iterator[str]:
    for line in textwrap.wrap(field.description or "", _WIDTH):
        yield f"# {line}\n"
    if value is None or (value == () and field.examples):
        yield f"# {name} = {toml((field.examples or ['off'])[0])}\n"
    else:
        yield f"{name} = {toml(value)}\n"


def _is_table(value: Any) -> bool:
    if isinstance(value, BaseModel):
        return True
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], BaseModel)


def toml(value: Any) -> str:
    """Return a value in TOML."""
    if is_dataclass(value) and not isinstance(value, type):
        return toml(asdict(value))
    if isinstance(value, Mapping):
        inside = ", ".join(f"{dotted((key,))} = {toml(one)}" for key, one in value.items())
        return "{ " + inside + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"{value:_}"
    # TOML has no pairs of surrogates, which JSON uses for some characters in ASCII.
    plain = str(value) if isinstance(value, Path | IPv4Network | IPv6Network) else value
    return json.dumps(plain, ensure_ascii=False)
