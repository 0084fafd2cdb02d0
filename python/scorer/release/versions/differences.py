"""The differences of two bundles, property by property."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorer.bundle.splits import ForestShape, forest_shape
from scorer.errors import ForestError
from scorer.release.version_answers import PropertyDifference
from scorer.release.versions import lineage

if TYPE_CHECKING:
    from scorer.release.answers import BundleDetail

Value = float | str | None
GROUPS = (
    "metrics",
    "parameters",
    "schema",
    "thresholds",
    "calibration",
    "program",
    "policy",
    "rules",
    "size",
)


def differences(
    left: BundleDetail, right: BundleDetail, local: Callable[[str], Path]
) -> tuple[PropertyDifference, ...]:
    """Return the properties of two bundles, group by group. Of features and rules only those that differ.

    Args:
        left: One bundle.
        right: The other bundle.
        local: Returns the directory of a verified bundle by its digest.
    """
    found: list[PropertyDifference] = []
    sides = [_properties(one, local(one.info.digest)) for one in (left, right)]
    for group in GROUPS:
        first, second = (side.get(group, {}) for side in sides)
        for name in dict.fromkeys((*first, *second)):
            one = _difference(group, name, first.get(name), second.get(name))
            if group not in _LONG or one.change != "same" or name in _COUNTS:
                found.append(one)
    return tuple(found)


def shapes(directory: Path, manifest: Mapping[str, Any]) -> dict[str, ForestShape]:
    """Return the shape of each forest of a bundle, by file name; those that cannot be read are left out."""
    found = {}
    for name in sorted(manifest.get("files", {})):
        if name.endswith("forest.bin"):
            try:
                found[name] = forest_shape(directory / name)
            except ForestError:
                continue
    return found


def _difference(group: str, name: str, left: Value, right: Value) -> PropertyDifference:
    change = "same" if left == right else "changed"
    if left is None or right is None:
        change = "same" if left == right else "added" if left is None else "removed"
    return PropertyDifference(group, name, left, right, change)


_FEATURES, _RULES = "number of features", "number of rules"
_COUNTS = (_FEATURES, _RULES)
_LONG = ("schema", "rules")
"""Groups whose equal properties are counted and not listed."""


def _properties(detail: BundleDetail, directory: Path) -> dict[str, dict[str, Value]]:
    facts = lineage.read(detail.lineage)
    program = detail.manifest.get("program") or ()
    return {
        "metrics": dict(facts.metrics),
        "parameters": dict(facts.parameters),
        "schema": {_FEATURES: float(len(detail.features)), **dict(_features(detail))},
        "thresholds": {
            str(band["label"]): float(band["from"]) for node in program for band in node.get("bands") or ()
        },
        "calibration": dict(_calibration(program, directory)),
        "program": dict(_program(program, directory)),
        "policy": dict(_policy(program, directory)),
        "rules": dict(_rules(detail, program)),
        "size": dict(_sizes(detail, directory)),
    }


def _features(detail: BundleDetail) -> Iterator[tuple[str, Value]]:
    for feature in detail.features:
        rules = [str(feature.get("type", "number"))]
        if feature.get("of"):
            rules.append(f"of the {feature['of']}")
        if feature.get("missing") == "refuse":
            rules.append("required")
        low, high = feature.get("minimum"), feature.get("maximum")
        if low is not None or high is not None:
            rules.append(f"from {'any' if low is None else low:} to {'any' if high is None else high}")
        if categories := feature.get("categories"):
            shown = ", ".join(map(str, categories[:8]))
            more = f" and {len(categories) - 8} more" if len(categories) > 8 else ""
            rules.append(f"{len(categories)} categories: {shown}{more}")
        if feature.get("unknown_category") == "missing":
            rules.append("unknown categories are missing")
        # Whatever else a schema says of a feature counts as a difference as well.
        rest = {key: value for key, value in feature.items() if key not in _SAID}
        if rest:
            rules.append(json.dumps(rest, sort_keys=True)[:200])
        yield str(feature["name"]), "; ".join(rules)


_SAID = ("name", "type", "of", "missing", "minimum", "maximum", "categories", "unknown_category")


def _calibration(program: Any, directory: Path) -> Iterator[tuple[str, Value]]:
    nodes = [node for node in program if node.get("kind") == "calibrate"]
    if not nodes:
        yield "method", "none"
        return
    maps = json.loads((directory / "calibration.json").read_bytes())["maps"]
    for node in nodes:
        own = maps[node["map"]]
        prefix = "" if len(nodes) == 1 else f"{node['map']}: "
        yield f"{prefix}method", str(own["method"])
        if own["method"] == "sigmoid":
            yield f"{prefix}slope", float(own["slope"])
            yield f"{prefix}intercept", float(own["intercept"])
        else:
            yield f"{prefix}knots", float(len(own["x"]))
            yield f"{prefix}range", f"{min(own['y']):.4g} to {max(own['y']):.4g}"


def _program(program: Any, directory: Path) -> Iterator[tuple[str, Value]]:
    """Yield the steps of transforms, the tables, the ensembles and the score map."""
    for node in program:
        kind, output = str(node.get("kind")), str(node.get("output"))
        if kind == "transform":
            for step in node.get("steps") or ():
                rest = {key: value for key, value in step.items() if key not in ("function", "output")}
                column = step.get("output") or step.get("feature")
                yield f"{output}: {step.get('function')} {column}", _json(rest)
        elif kind in ("mean", "stack", "switch"):
            rest = {key: value for key, value in node.items() if key not in ("kind", "output")}
            yield f"{kind} {output}", _json(rest)
        elif kind == "scoremap":
            content = (directory / "score_map.json").read_bytes()
            yield f"scoremap {output}", f"{len(json.loads(content)['x'])} knots, {_digest(content)}"
    tables = directory / "tables.json"
    if tables.exists():
        for name, table in json.loads(tables.read_bytes())["tables"].items():
            content = json.dumps(table, sort_keys=True).encode()
            yield f"table {name}", f"{len(table['values'])} categories, {_digest(content)}"


def _policy(program: Any, directory: Path) -> Iterator[tuple[str, Value]]:
    for node in program:
        if node.get("kind") == "policy":
            for name, value in node["policy"].items():
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                yield name, float(value) if is_number else value if isinstance(value, str) else _json(value)
            ids = [action["id"] for action in json.loads((directory / "actions.json").read_bytes())]
            yield "actions", float(len(ids))
            yield "catalogue", ", ".join(sorted(ids))[:500]


def _rules(detail: BundleDetail, program: Any) -> Iterator[tuple[str, Value]]:
    if not detail.rules:
        return
    yield _RULES, float(len(detail.rules))
    for rule in detail.rules:
        parts = (rule.kind, f"when {rule.condition}", rule.effect, rule.active, rule.source)
        yield rule.id, "; ".join(part for part in parts if part)
    for node in program:
        for name, entry in node.get("lists", {}).items() if node.get("kind") == "rules" else ():
            file = detail.manifest["files"][entry["file"]]
            yield f"list {name}", f"{file['bytes']:,} bytes of {entry['type']}, {file['sha256'][:12]}"


def _sizes(detail: BundleDetail, directory: Path) -> Iterator[tuple[str, Value]]:
    yield "bytes", float(detail.info.bytes)
    for name, shape in shapes(directory, detail.manifest).items():
        yield f"{name}: trees", float(shape.trees)
        yield f"{name}: nodes", float(shape.nodes)
        yield f"{name}: bytes", float(detail.manifest["files"][name]["bytes"])


def _digest(content: bytes) -> str:
    """Return the part of a SHA-256 by which contents are told apart."""
    return f"SHA-256 {sha256(content).hexdigest()[:12]}"


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)[:500]
