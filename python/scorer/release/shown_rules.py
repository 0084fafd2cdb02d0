"""The rules of a stored bundle as text, for pages, comparisons and REST."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scorer.bundle.rules import RULES, written_budget, written_effects
from scorer.release.answers import RuleText

_ACTIVE = ("from", "until", "snoozed_until")


def shown_rules(directory: Path) -> tuple[RuleText, ...]:
    """Return the values, rules and rows of tables of a verified bundle in the order of its file.

    Args:
        directory: The bundle.

    Returns:
        One entry each; empty if the bundle has no rules.
    """
    path = directory / RULES
    if not path.is_file():
        return ()
    written = tomllib.loads(path.read_text())
    return (
        *(RuleText(one["name"], "value", one["is"], "", "", "") for one in written.get("values", ())),
        *(_rule(one) for one in written.get("rules", ())),
        *(row for table in written.get("tables", ()) for row in _rows(table)),
    )


def _rule(rule: Mapping[str, Any]) -> RuleText:
    effects = written_effects(rule)
    effects += [f"{name} {_actions(rule[name])}" for name in ("remove", "keep") if name in rule]
    active = [f"{name.replace('_', ' ')} {rule[name]}" for name in _ACTIVE if name in rule]
    if "rollout" in rule:
        active.append(f"{rule['rollout']:g} % of requests")
    active += written_budget(rule)
    if rule.get("priority"):
        active.append(f"priority {rule['priority']}")
    if rule.get("enabled") is False:
        active.append("not enabled")
    return RuleText(
        rule["id"], "rule", rule["when"], ", ".join(effects), ", ".join(active), rule.get("source", "")
    )


def _rows(table: Mapping[str, Any]) -> Iterator[RuleText]:
    inputs, outputs = table["inputs"], table["outputs"]
    for number, cells in enumerate(table["rows"], 1):
        tested = _cells(inputs, cells[: len(inputs)])
        written = _cells(outputs, cells[len(inputs) :])
        yield RuleText(
            f"{table['id']}.row{number}",
            f"table, hit {table.get('hit', 'first')}",
            " and ".join(tested) or "always",
            ", ".join(written),
            "",
            "",
        )


def _cells(names: Sequence[str], cells: Sequence[Any]) -> list[str]:
    texts = [_plain(cell).strip() for cell in cells]
    return [f"{name} {text}" for name, text in zip(names, texts, strict=True) if text not in ("", "-")]


def _actions(selection: Mapping[str, Sequence[str]]) -> str:
    return " and ".join(f"{factor} {' or '.join(values)}" for factor, values in selection.items())


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
