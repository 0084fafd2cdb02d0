"""What the names of an imported file mean in a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from scorer.bundle.models import Action, Feature
from scorer.bundle.toml_models import read_toml
from scorer.rule_exchange.expressions import ExchangeError
from scorer.rule_exchange.formulas import Kind, Symbol

WRITTEN = ("decision", "reason", "cap", "floor", "queue")
"""What rules write."""
_KINDS: dict[str, Kind] = {"number": "number", "category": "string", "flag": "bool"}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MappedEligibility(_Strict):
    """An output about the actions of a bundle."""

    source: str
    """The regulation or agreement."""
    remove: dict[str, dict[str, list[str]]]
    """For each value of the output the factors' values of the actions that are not eligible."""


class ImportMapping(_Strict):
    """The TOML file of ``--map``, which docs/rule-exchange.md describes."""

    names: dict[str, str] = {}
    """Feature of the bundle, or ``score``, by the name in the file."""
    outputs: dict[str, Literal["decision", "reason", "cap", "floor", "queue"]] = {}
    """What rules write, by the name of the output."""
    decisions: dict[str, str] = {}
    """Decision of the bundle by the value in the file."""
    eligibility: dict[str, MappedEligibility] = {}
    """Outputs about actions, by name."""
    ignore: list[str] = []
    """Outputs that are left out."""


@dataclass(frozen=True)
class RuleTarget:
    """The bundle that rules are imported for.

    Attributes:
        features: The features of a request.
        decisions: The labels of the bands, the strictest first; empty for a bundle of actions.
        actions: The catalogue; empty for a bundle of scores.
    """

    features: Sequence[Feature]
    decisions: Sequence[str]
    actions: Sequence[Action]

    def symbols(self) -> dict[str, Symbol]:
        """Return what conditions can read, by name."""
        found = {
            feature.name: Symbol(
                feature.name,
                _KINDS[feature.type],
                nullable=feature.missing == "allow" or feature.unknown_category == "missing",
                values=tuple(feature.categories) if feature.type == "category" else None,
            )
            for feature in self.features
            if feature.name.isascii() and feature.name.isidentifier()
        }
        if self.decisions:
            found["score"] = Symbol("score", "number")
        return found


def read_import_mapping(file: Path | None) -> ImportMapping:
    """Read the file of ``--map``.

    Args:
        file: The TOML file; None for names that are the bundle's.

    Raises:
        BundleError: It cannot be read or is not valid.
    """
    return ImportMapping() if file is None else read_toml(file, ImportMapping, "map")


def mapped_symbol(path: str, mapping: ImportMapping, symbols: dict[str, Symbol]) -> Symbol:
    """Return the symbol of the bundle that a name of the file stands for.

    Args:
        path: The name in the file.
        mapping: The mapping.
        symbols: The symbols of the bundle.

    Raises:
        ExchangeError: The bundle has none of this name.
    """
    name = mapping.names.get(path, path)
    if name not in symbols:
        known = ", ".join(symbols)
        raise ExchangeError(
            f'"{path}" is not a feature of the bundle ({known}); '
            f'map it in the table [names] of the file of --map: "{path}" = "FEATURE"'
        )
    return symbols[name]
