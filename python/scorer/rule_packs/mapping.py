"""Relating the names of packs to those of a bundle."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from scorer.bundle.models import Action, Feature
from scorer.bundle.rule_text import comment, toml_text
from scorer.bundle.toml_models import read_toml
from scorer.errors import BundleError
from scorer.rule_packs.pack import PackRule, RulePack

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_CONSTANTS = ("true", "false")


class PackMapping(BaseModel):
    """The bundle's names for those of packs. Names that are left out are the same in both."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    features: dict[str, str] = {}
    """For a feature of a pack, the bundle's feature or an expression over the bundle's features."""
    factors: dict[str, str] = {}
    """For a factor of a pack, the factor of the bundle's actions."""
    levels: dict[str, dict[str, str | list[str]]] = {}
    """For a value of a pack's factor, the value, or values, of the bundle's factor."""


@dataclass(frozen=True)
class MappedNames:
    """The bundle's names for what the chosen rules of packs need."""

    features: Mapping[str, str]
    """Expression of each feature."""
    factors: Mapping[str, str]
    """The bundle's factor for each factor."""
    levels: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    """The bundle's values for each factor and value."""

    def selection(self, remove: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Return the selection of actions of a pack's rule in the bundle's names."""
        return {
            self.factors[factor]: [own for level in levels for own in self.levels[factor, level]]
            for factor, levels in remove.items()
        }


def read_mapping(file: Path | None, given: Sequence[str]) -> PackMapping:
    """Read a mapping from a TOML file and from options.

    Args:
        file: The file, with the tables of `PackMapping`; None for none.
        given: Entries that replace those of the file: ``FEATURE=EXPRESSION``, ``FACTOR=NAME``, and
            ``FACTOR.VALUE=NAME[,NAME]``. A name of both kinds is a feature.

    Raises:
        BundleError: The file or an entry is not valid.
    """
    mapping = PackMapping() if file is None else read_toml(file, PackMapping, "mapping")
    features, factors = dict(mapping.features), dict(mapping.factors)
    levels = {factor: dict(names) for factor, names in mapping.levels.items()}
    for entry in given:
        name, sign, value = (part.strip() for part in entry.partition("="))
        if not (name and sign and value):
            raise BundleError(f'mapping "{entry}" is not of the form NAME=VALUE; correct it')
        factor, dot, level = name.partition(".")
        if dot:
            levels.setdefault(factor, {})[level] = [one.strip() for one in value.split(",")]
        else:
            # Whether it is a feature or a factor is known when the packs are.
            features[name] = factors[name] = value
    return PackMapping(features=features, factors=factors, levels=levels)


def mapped_names(
    chosen: Sequence[tuple[RulePack, Sequence[PackRule]]],
    mapping: PackMapping,
    features: Sequence[Feature],
    actions: Sequence[Action],
) -> MappedNames:
    """Return the bundle's names for what rules need.

    Args:
        chosen: Packs with the rules that are used of each.
        mapping: The team's mapping.
        features: The features of the bundle's requests.
        actions: The bundle's actions.

    Raises:
        BundleError: The bundle lacks features, factors or values, or the mapping has names that no pack has.
            The message has a line for each.
    """
    mistakes = _unknown(chosen, mapping)
    known = {feature.name: feature for feature in features}
    own = {factor: {action.factors[factor] for action in actions} for factor in _factors(actions)}
    expressions: dict[str, str] = {}
    factors: dict[str, str] = {}
    levels: dict[tuple[str, str], Sequence[str]] = {}
    for pack, rules in chosen:
        for name, feature in pack.features_of(rules).items():
            expression = mapping.features.get(name, name)
            plain = _PLAIN.fullmatch(expression) is not None and expression not in _CONSTANTS
            unit = f" in {feature.unit}" if feature.unit else ""
            if plain and expression not in known:
                of = "" if expression == name else f', mapped to "{expression}"'
                mistakes.append(
                    f'feature "{name}"{of}: the bundle has none of this name; the pack {pack.name} needs a '
                    f"{feature.type}{unit}: {feature.about} Map it, or leave out {_users(pack, rules, name)}"
                )
            elif plain and known[expression].type != feature.type:
                mistakes.append(
                    f'feature "{name}", mapped to "{expression}": that is a {known[expression].type}, the '
                    f"pack {pack.name} needs a {feature.type}{unit}; map it to an expression of that type"
                )
            expressions[name] = expression
        for factor, wanted in pack.levels_of(rules).items():
            factors[factor] = mapping.factors.get(factor, factor)
            if factors[factor] not in own:
                mistakes.append(
                    f'factor "{factor}": the bundle\'s actions have no factor "{factors[factor]}"; map it to '
                    f"one of {', '.join(own) or 'none'}, or leave out the rules of {pack.name} that name it"
                )
                continue
            for level in wanted:
                names = mapping.levels.get(factor, {}).get(level, level)
                levels[factor, level] = [names] if isinstance(names, str) else names
                for missing in sorted(set(levels[factor, level]) - own[factors[factor]]):
                    rule = ", ".join(r.id for r in rules if level in r.remove.get(factor, ()))
                    mistakes.append(
                        f'factor "{factor}", value "{level}": no action has {factors[factor]} = "{missing}"; '
                        f"map the value, or leave out {rule}"
                    )
    if mistakes:
        raise BundleError("\n".join(dict.fromkeys(mistakes)))
    return MappedNames(expressions, factors, levels)


def mapping_template(packs: Sequence[RulePack]) -> str:
    """Return a mapping file of packs that maps every name to itself, with the meaning of each."""
    lines = [
        "# The names of the bundle for those of the packs. A feature may be an expression.",
        "[features]",
    ]
    for name, feature in {name: one for pack in packs for name, one in pack.features.items()}.items():
        unit = f", {feature.unit}" if feature.unit else ""
        lines += [*comment(f"{feature.about} ({feature.type}{unit})"), f"{name} = {toml_text(name)}"]
    factors = {name: one for pack in packs for name, one in pack.factors.items()}
    lines += ["", "[factors]"]
    for name, factor in factors.items():
        lines += [*comment(factor.about), f"{name} = {toml_text(name)}"]
    for name in factors:
        lines += ["", f"[levels.{name}]"]
        meanings = {
            key: text
            for pack in packs
            if name in pack.factors
            for key, text in pack.factors[name].values.items()
        }
        for level, meaning in meanings.items():
            lines += [*comment(meaning), f"{level} = {toml_text(level)}"]
    return "\n".join(lines) + "\n"


def _unknown(chosen: Sequence[tuple[RulePack, Sequence[PackRule]]], mapping: PackMapping) -> list[str]:
    """Return a line for each name of the mapping that no chosen pack has."""
    features = {name for pack, _ in chosen for name in pack.features}
    levels: dict[str, set[str]] = {}
    for pack, _ in chosen:
        for name, factor in pack.factors.items():
            levels.setdefault(name, set()).update(factor.values)
    names = {*mapping.features, *mapping.factors, *mapping.levels}
    lines = [
        f'mapping of "{name}": the packs have no feature or factor of this name; correct it'
        for name in sorted(names - features - set(levels))
    ]
    for name, given in mapping.levels.items():
        lines += [
            f'mapping of "{name}.{level}": the packs have no such value; the values are '
            f"{', '.join(sorted(levels[name]))}"
            for level in sorted(set(given) - levels.get(name, set(given)))
        ]
    return lines


def _factors(actions: Sequence[Action]) -> list[str]:
    return list(actions[0].factors) if actions else []


def _users(pack: RulePack, rules: Sequence[PackRule], feature: str) -> str:
    return ", ".join(rule.id for rule in rules if feature in pack.features_of([rule]))
