"""Writing the rule set of a bundle from packs and a team's own rules."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scorer.bundle.models import Action, Feature
from scorer.bundle.rule_text import comment, table_text, toml_text
from scorer.errors import BundleError
from scorer.rule_packs.mapping import MappedNames, PackMapping, mapped_names
from scorer.rule_packs.pack import PREFIX, PackFeature, PackRule, RulePack


@dataclass(frozen=True)
class OwnRules:
    """A rule set of the team, to which the rules of packs are added."""

    file: str
    """Its name in messages."""
    text: str
    """The TOML text."""


def pack_rules_text(
    packs: Sequence[RulePack],
    mapping: PackMapping,
    features: Sequence[Feature],
    actions: Sequence[Action],
    *,
    without: Sequence[str] = (),
    own: OwnRules | None = None,
    name: str | None = None,
) -> str:
    """Return a rule set with the rules of packs in the names of a bundle.

    Args:
        packs: The packs, each once.
        mapping: The bundle's names for those of the packs.
        features: The features of the bundle's requests.
        actions: The bundle's actions.
        without: Ids of rules to leave out.
        own: The team's rule set. Its text stays as it is, and the rules of the packs follow.
        name: Name of the rule set; by default the own rule set's, or those of the packs.

    Raises:
        BundleError: A rule to leave out does not exist, names are missing in the bundle or the mapping, or
            two rules or values have the same name. The message has a line for each mistake.
    """
    chosen = _chosen(packs, without)
    mapped = mapped_names(chosen, mapping, features, actions)
    _check_names(chosen, own)
    body = _body(chosen, mapped)
    if own is None:
        about = [f"{pack.pack.title}. Pack {pack.name}, sources as of {pack.pack.as_of}." for pack in packs]
        title = [line for text in about for line in comment(text)]
        heading = [f"name = {toml_text(name or '_'.join(pack.name for pack in packs))}", ""]
        return "\n".join([*title, *heading, body])
    text = own.text.rstrip() + "\n\n" + body
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BundleError(
            f'rules "{own.file}": rules cannot be added to the file: {error}; write its values and rules as '
            "[[values]] and [[rules]]"
        ) from None
    return text


def _chosen(packs: Sequence[RulePack], without: Sequence[str]) -> list[tuple[RulePack, Sequence[PackRule]]]:
    known = {rule.id for pack in packs for rule in pack.rules}
    if unknown := [rule for rule in without if rule not in known]:
        raise BundleError(
            "\n".join(
                f'rule "{rule}": the packs have none of this name; it cannot be left out' for rule in unknown
            )
        )
    return [(pack, [rule for rule in pack.rules if rule.id not in without]) for pack in packs]


def _check_names(chosen: Sequence[tuple[RulePack, Sequence[PackRule]]], own: OwnRules | None) -> None:
    """Refuse rules or values of the same name, and features that two packs define differently."""
    places: dict[tuple[str, str], str] = {}
    features: dict[str, tuple[PackFeature, str]] = {}
    mistakes: list[str] = []

    def add(kind: str, name: str, place: str) -> None:
        before = places.setdefault((kind, name), place)
        if before != place:
            leave = f", or leave it out with --without {name}" if kind == "rule" else ""
            mistakes.append(f'{kind} "{name}" is in {before} and in {place}; rename or remove one{leave}')

    if own is not None:
        for kind, name in _own_names(own):
            add(kind, name, f'"{own.file}"')
    for pack, rules in chosen:
        place = f"the pack {pack.name}"
        for rule in rules:
            add("rule", rule.id, place)
        for value in pack.values_of(rules):
            add("value", value.name, place)
        for name, feature in pack.features_of(rules).items():
            other, where = features.setdefault(name, (feature, place))
            if (other.type, other.unit) != (feature.type, feature.unit):
                mistakes.append(
                    f'feature "{name}" has another type or unit in {where} than in {place}; write two files'
                )
            if ("value", PREFIX + name) in places:
                add("value", PREFIX + name, place)
    if mistakes:
        raise BundleError("\n".join(mistakes))


def _own_names(own: OwnRules) -> list[tuple[str, str]]:
    try:
        content: dict[str, Any] = tomllib.loads(own.text)
    except tomllib.TOMLDecodeError as error:
        raise BundleError(f'rules "{own.file}" is not valid TOML: {error}; correct the file') from None
    if content.get("hit", "collect") != "collect":
        raise BundleError(
            f'rules "{own.file}": the hit policy is "{content["hit"]}", and rules of packs need "collect", '
            "with which every rule that fires has its effect; change it, or move the other rules to a table"
        )
    names = [("value", value.get("name")) for value in content.get("values", [])]
    names += [("rule", rule.get("id")) for key in ("rules", "tables") for rule in content.get(key, [])]
    return [(kind, name) for kind, name in names if isinstance(name, str)]


def _body(chosen: Sequence[tuple[RulePack, Sequence[PackRule]]], mapped: MappedNames) -> str:
    features = {name: one for pack, rules in chosen for name, one in pack.features_of(rules).items()}
    parts = (
        ["# The features of the request that the rules of packs read, in this bundle's names.\n"]
        if features
        else []
    )
    for name, feature in features.items():
        unit = f" Unit: {feature.unit}." if feature.unit else ""
        parts.append(
            table_text("values", {"name": PREFIX + name, "is": mapped.features[name]}, feature.about + unit)
        )
    for pack, rules in chosen:
        parts.append("\n".join(comment(f"{pack.pack.title}.")) + "\n")
        parts += [
            table_text("values", {"name": value.name, "is": value.expression}, value.about)
            for value in pack.values_of(rules)
        ]
        for rule in rules:
            fields = {
                "id": rule.id,
                "when": rule.when,
                "remove": mapped.selection(rule.remove),
                "source": rule.source,
            }
            parts.append(table_text("rules", fields, rule.about))
    return "\n".join(parts)
