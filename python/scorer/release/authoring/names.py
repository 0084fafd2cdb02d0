"""Names that the rules of a bundle can use."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scorer.bundle.check import read_schema
from scorer.release.rule_answers import RuleName

if TYPE_CHECKING:
    from scorer.bundle import Bundle
    from scorer.bundle.rules import BundleRules

_TYPES: Final = {"category": "string", "flag": "bool", "number": "double"}
_VALUES: Final = 200
"""Values of one category or factor that are returned."""
_FUNCTIONS: Final = {
    "has": "has(name): bool",
    "list": 'value in list("name"): bool',
    "startsWith": "string.startsWith(text): bool",
    "endsWith": "string.endsWith(text): bool",
    "contains": "string.contains(text): bool",
    "matches": "string.matches(pattern): bool",
    "size": "size(string): int",
    "double": "double(int): double",
    "int": "int(double): int",
    "exists": "[...].exists(x, condition): bool",
    "all": "[...].all(x, condition): bool",
    "exists_one": "[...].exists_one(x, condition): bool",
}
_KEYS: Final = {
    "id": "name of the rule",
    "when": "condition",
    "decision": "decision that it writes",
    "reason": "reason code",
    "queue": "review queue",
    "cap": "greatest score",
    "floor": "smallest score",
    "remove": "factors of actions that are not eligible",
    "keep": "factors of actions that stay eligible",
    "source": "regulation or agreement",
    "priority": "for the hit policy priority",
    "from": "start of its effect",
    "until": "end of its effect, excluded",
    "snoozed_until": "end of its pause",
    "rollout": "per cent of the requests",
    "daily": "most requests of a UTC day",
    "daily_amount": "most of the sum of a number on a UTC day",
    "enabled": "true or false",
}


def rule_names(directory: Path, bundle: Bundle, rules: BundleRules | None) -> Sequence[RuleName]:
    """Return the names in the order in which an editor shows them.

    Args:
        directory: The bundle's directory.
        bundle: The same bundle in memory.
        rules: Its rules, whose lists can be named.
    """
    return tuple(_names(directory, bundle, rules))


def _names(directory: Path, bundle: Bundle, rules: BundleRules | None) -> Iterator[RuleName]:
    for feature in read_schema(directory).features:
        if feature.name.isidentifier():
            yield RuleName(feature.name, "feature", _TYPES[feature.type], tuple(feature.categories[:_VALUES]))
    if bundle.kind == "score":
        yield RuleName("score", "score", "double")
    else:
        factors: dict[str, dict[str, None]] = {}
        for action in json.loads((directory / "actions.json").read_bytes()):
            for factor, value in action.get("factors", {}).items():
                factors.setdefault(factor, {})[value] = None
        for factor, values in sorted(factors.items()):
            yield RuleName(f"action.{factor}", "factor", "string", tuple(values)[:_VALUES])
    for name, one in sorted((rules.lists if rules else {}).items()):
        yield RuleName(name, "list", f"list of {one.type}")
    for label in reversed(bundle.labels):
        yield RuleName(label, "decision", "decision")
    yield from (RuleName(name, "function", signature) for name, signature in _FUNCTIONS.items())
    yield from (RuleName(name, "key", meaning) for name, meaning in _KEYS.items())
