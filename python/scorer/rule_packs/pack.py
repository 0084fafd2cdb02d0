"""Reading the packs of this package."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from datetime import date
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from scorer.errors import BundleError

PREFIX = "payment."
"""What the names of features begin with in the conditions of a pack."""
_NAME = re.compile(r"\b[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*\b")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PackHeading(_Strict):
    """What a pack is about."""

    title: str
    about: str
    as_of: date
    """The day on which the sources were read."""


class PackFeature(_Strict):
    """A feature of the request that rules of a pack read."""

    type: Literal["number", "flag"]
    unit: str = ""
    about: str


class PackFactor(_Strict):
    """A factor of actions that rules of a pack name."""

    about: str
    values: dict[str, str]
    """The meaning of each value."""


class PackValue(_Strict):
    """A named value that rules of a pack read: a limit, or an expression."""

    name: str
    expression: str = Field(alias="is")
    about: str = ""


class PackRule(_Strict):
    """A rule about eligibility, with its source."""

    id: str
    when: str
    remove: dict[str, list[str]]
    source: str
    about: str = ""


class RulePack(_Strict):
    """Eligibility rules with their sources, and what they need.

    Conditions name a feature `x` as `payment.x`.
    """

    name: str
    pack: PackHeading
    features: dict[str, PackFeature]
    factors: dict[str, PackFactor]
    values: list[PackValue]
    rules: list[PackRule]

    def values_of(self, rules: Iterable[PackRule]) -> list[PackValue]:
        """Return the values that rules read, directly or through other values, in the order of the pack."""
        expressions = {value.name: value.expression for value in self.values}
        wanted = [name for rule in rules for name in names_in(rule.when)]
        found: set[str] = set()
        while wanted:
            name = wanted.pop()
            if name in expressions and name not in found:
                found.add(name)
                wanted += names_in(expressions[name])
        return [value for value in self.values if value.name in found]

    def features_of(self, rules: Sequence[PackRule]) -> dict[str, PackFeature]:
        """Return the features that rules read, directly or through values, in the order of the pack."""
        texts = [rule.when for rule in rules] + [value.expression for value in self.values_of(rules)]
        read = {name for text in texts for name in names_in(text)}
        return {name: feature for name, feature in self.features.items() if PREFIX + name in read}

    def levels_of(self, rules: Iterable[PackRule]) -> dict[str, list[str]]:
        """Return the values of factors that rules name, by factor, in the order of the pack."""
        named = {(name, level) for rule in rules for name, levels in rule.remove.items() for level in levels}
        chosen = {
            name: [level for level in factor.values if (name, level) in named]
            for name, factor in self.factors.items()
        }
        return {name: levels for name, levels in chosen.items() if levels}


def names_in(expression: str) -> list[str]:
    """Return the names with a dot that an expression of a pack reads."""
    return _NAME.findall(expression)


def pack_names() -> list[str]:
    """Return the names of all packs, in order."""
    entries = files("scorer.rule_packs").iterdir()
    return sorted(entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml"))


def read_pack(name: str) -> RulePack:
    """Read a pack.

    Args:
        name: Name of the pack.

    Raises:
        BundleError: There is no such pack.
    """
    known = pack_names()
    if name not in known:
        raise BundleError(f'rule pack "{name}" does not exist; the packs are {", ".join(known)}')
    content = tomllib.loads((files("scorer.rule_packs") / f"{name}.toml").read_text("utf-8"))
    return RulePack.model_validate({"name": name, **content})
