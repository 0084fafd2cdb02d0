"""The check that a bundle fits a checkpoint: its kind, its name, and the features of the requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scorer.release.answers import BundleDetail


def problems(candidate: BundleDetail, live: BundleDetail, *, checkpoint: str, alias: str) -> list[str]:
    """Return the reasons why a bundle does not fit, one sentence each; empty if it fits.

    Args:
        candidate: The bundle.
        live: The bundle that answers now. Its features are those that requests contain.
        checkpoint: Name of the checkpoint.
        alias: Registry alias of the checkpoint, which contains the required name of the bundle.
    """
    where = f'checkpoint "{checkpoint}"'
    found = []
    if candidate.info.kind != live.info.kind:
        return [
            f'{where} takes bundles of kind "{live.info.kind}", {candidate.info.name} is of kind '
            f'"{candidate.info.kind}"; name another checkpoint'
        ]
    name = alias.partition("@")[0]
    if candidate.info.name != name:
        found.append(
            f'{where} follows "{alias}", which only a bundle named "{name}" can have; this one is named '
            f'"{candidate.info.name}": build it with that name'
        )
    fed = {feature["name"]: feature for feature in live.features if not feature.get("of")}
    lacking, others = [], []
    for feature in candidate.features:
        if feature.get("of"):
            continue
        mine = fed.get(feature["name"])
        if mine is None:
            # A new feature may be missing: callers can send it by name once a bundle reads it.
            if feature.get("missing") == "refuse":
                lacking.append(feature["name"])
        elif _type(mine) != _type(feature):
            others.append(f"{feature['name']} ({_type(mine)}, not {_type(feature)})")
    if lacking:
        found.append(
            f"{where} does not feed {', '.join(lacking)}, without which {candidate.info.name} refuses to "
            "score; let them be missing until callers send them, or train without them"
        )
    if others:
        found.append(f"{where} feeds {', '.join(others)}; train with the types that it feeds")
    return found


def new_features(candidate: BundleDetail, live: BundleDetail) -> list[str]:
    """Return the features that the live bundle does not have. They are missing until callers send them."""
    fed = {feature["name"] for feature in live.features}
    return [one["name"] for one in candidate.features if not one.get("of") and one["name"] not in fed]


def actions_lacking(candidate: Path, live: Path) -> list[str]:
    """Return the actions of the live bundle that the candidate does not have.

    Callers may still list them as eligible, or name them in a fallback.
    """

    def ids(directory: Path) -> list[str]:
        file = directory / "actions.json"
        return [action["id"] for action in json.loads(file.read_bytes())] if file.exists() else []

    known = set(ids(candidate))
    return [action for action in ids(live) if action not in known]


def _type(feature: Mapping[str, Any]) -> str:
    return str(feature.get("type", "number"))


def difference(candidate: BundleDetail, live: BundleDetail) -> dict[str, Any]:
    """Return the differences between a candidate and the live bundle, as `ChangeDetail.diff`."""
    mine, theirs = ({f["name"]: dict(f) for f in detail.features} for detail in (candidate, live))
    metrics = [dict((detail.lineage or {}).get("metrics") or {}) for detail in (candidate, live)]
    thresholds = [_bands(detail.manifest) for detail in (candidate, live)]
    lineage = ("data_digest", "code_version", "run_id")
    return {
        "against": live.info.digest,
        "features": {
            "added": sorted(mine.keys() - theirs.keys()),
            "removed": sorted(theirs.keys() - mine.keys()),
            "changed": sorted(name for name in mine.keys() & theirs.keys() if mine[name] != theirs[name]),
        },
        "bytes": {"before": live.info.bytes, "after": candidate.info.bytes},
        "thresholds": {"before": thresholds[1], "after": thresholds[0]},
        "metrics": {
            name: {"before": metrics[1].get(name), "after": metrics[0].get(name)}
            for name in sorted(metrics[0].keys() | metrics[1].keys())
        },
        "lineage": {
            name: {"before": (live.lineage or {}).get(name), "after": (candidate.lineage or {}).get(name)}
            for name in lineage
            if (live.lineage or {}).get(name) != (candidate.lineage or {}).get(name)
        },
    }


def _bands(manifest: Mapping[str, Any]) -> dict[str, Any]:
    for node in manifest.get("program") or ():
        if node.get("kind") == "threshold":
            return {band["label"]: band["from"] for band in node.get("bands") or ()}
    return {}
