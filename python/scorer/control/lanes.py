"""Lanes and the table of them: immutable, replaced as a whole."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scorer.errors import InvalidLanesError

LIVE = "live"
"""The lane that follows the registry, or a manual swap."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Lane:
    """One way through a checkpoint."""

    name: str
    bundle: str
    """``sha256:<hex>``; in a request also an alias or a prefix."""
    share: float
    """Of the checkpoint's traffic, 0 to 1."""


Lanes = tuple[Lane, ...]


def only(digest: str) -> Lanes:
    """All traffic to one bundle."""
    return (Lane(LIVE, digest, 1.0),)


@dataclass(frozen=True, slots=True)
class LaneTable:
    """What every checkpoint serves; an empty tuple where it has nothing yet."""

    version: int
    checkpoints: Mapping[str, Lanes]

    def bundles(self) -> set[str]:
        """The digest of every bundle in the table."""
        return bundles_of(self.checkpoints)

    def to_dict(self) -> dict[str, Any]:
        """As the data plane and the state file have it."""
        return {"version": self.version, "checkpoints": lanes_to_dict(self.checkpoints)}

    def is_complete(self) -> bool:
        """Whether every checkpoint has something to serve."""
        return all(self.checkpoints.values())


def bundles_of(checkpoints: Mapping[str, Lanes]) -> set[str]:
    """The digest of every bundle in some lanes."""
    return {lane.bundle for lanes in checkpoints.values() for lane in lanes}


def lanes_to_dict(checkpoints: Mapping[str, Lanes]) -> dict[str, list[dict[str, Any]]]:
    """Lanes as JSON has them."""
    return {
        checkpoint: [{"name": lane.name, "bundle": lane.bundle, "share": lane.share} for lane in lanes]
        for checkpoint, lanes in checkpoints.items()
    }


def lanes_from_dict(value: Mapping[str, Any]) -> dict[str, Lanes]:
    """The reverse of `lanes_to_dict`."""
    return {
        checkpoint: tuple(Lane(str(e["name"]), str(e["bundle"]), float(e["share"])) for e in lanes)
        for checkpoint, lanes in value.items()
    }


def check_lanes(checkpoint: str, lanes: Sequence[Lane]) -> None:
    """Refuses lanes that could not be served, before anything is loaded."""
    where = f'checkpoint "{checkpoint}"'
    if not lanes:
        raise InvalidLanesError(f"{where}: no lanes are given; give at least one")
    seen: set[str] = set()
    for lane in lanes:
        if not _NAME.fullmatch(lane.name):
            raise InvalidLanesError(
                f'{where}: lane name "{lane.name}" is not allowed; use lower-case letters, digits, ".", "_" '
                'and "-", starting with a letter or digit, at most 64 characters'
            )
        if lane.name in seen:
            raise InvalidLanesError(f'{where}: lane "{lane.name}" is given twice; give each its own name')
        seen.add(lane.name)
        if not lane.bundle:
            raise InvalidLanesError(f'{where}: lane "{lane.name}" names no bundle; give a digest or an alias')
        if not (math.isfinite(lane.share) and 0 <= lane.share <= 1):
            raise InvalidLanesError(
                f'{where}: lane "{lane.name}" has share {lane.share:g}; a share is between 0 and 1'
            )
    total = math.fsum(lane.share for lane in lanes)
    if abs(total - 1) > _SUM_TOLERANCE:
        raise InvalidLanesError(f"{where}: the shares add up to {total:g}; they must add up to 1")
