"""Comparison of action bundles that differ in their overlays only, and the size of an overlay's offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from scorer.bundle.revision import without_overlay

_REVISED = {"golden.bin", "overlay.json"}
_OF_THE_REVISION = {"digest", "files", "created_at", "lineage", "program"}


def differences(candidate: Path, live: Path) -> list[str]:
    """Return the differences of two action bundles other than their overlays.

    Args:
        candidate: Directory of one bundle.
        live: Directory of the other bundle.

    Returns:
        Names of the differing parts; empty if one bundle is a revision of the other.
    """
    first, second = (json.loads((path / "manifest.json").read_bytes()) for path in (candidate, live))
    files = [
        {name: entry["sha256"] for name, entry in manifest["files"].items() if name not in _REVISED}
        for manifest in (first, second)
    ]
    differing = sorted(name for name, _ in files[0].items() ^ files[1].items())
    if without_overlay(first["program"]) != without_overlay(second["program"]):
        differing.append("program")
    rest = [
        {key: value for key, value in manifest.items() if key not in _OF_THE_REVISION}
        for manifest in (first, second)
    ]
    differing += sorted(
        key for key in rest[0].keys() | rest[1].keys() if rest[0].get(key) != rest[1].get(key)
    )
    return [*dict.fromkeys(differing)]


def shift(bundle: Path) -> float:
    """Return the largest offset that a bundle's overlay gives an action, in log-odds; 0 without one."""
    try:
        overlay = json.loads((bundle / "overlay.json").read_bytes())
    except FileNotFoundError:
        return 0.0
    everywhere: Mapping[str, Mapping[str, float]] = overlay.get("everywhere") or {}
    segments = [{}, *(overlay.get("segments") or {}).values()]
    largest = 0.0
    for segment in segments:
        total = 0.0
        for factor in everywhere.keys() | segment.keys():
            general, own = everywhere.get(factor, {}), segment.get(factor, {})
            total += max(
                (abs(general.get(level, 0.0) + own.get(level, 0.0)) for level in general.keys() | own.keys()),
                default=0.0,
            )
        largest = max(largest, total)
    return min(largest, float(overlay.get("limit", 2.0)))
