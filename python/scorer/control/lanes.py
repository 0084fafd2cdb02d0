"""Lanes and the lane table, which is immutable and replaced as a whole.

Answer lanes and observe lanes are separate: a change of one kind does not affect the other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scorer.control.filters import parse_filter
from scorer.errors import InvalidLanesError

LIVE = "live"
"""Name of the lane that the registry's alias or a manual swap determines."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of a checkpoint."""

    name: str
    bundle: str
    """``sha256:<hex>``; in a request also an alias or a prefix."""
    share: float = 0.0
    """Share of the checkpoint's traffic that it answers, 0 to 1; 0 for an observe lane."""
    sample: float = 0.0
    """Share of the checkpoint's requests that it observes, above 0 to 1; 0 for an answer lane."""
    filter: str = ""
    """Conditions on features for an observe lane (`scorer.control.filters`), as text."""
    pool: bool = False
    """Whether the lane observes in the shadow pool. The live server sends requests to the pool and does not
    load the bundle."""
    reads: tuple[str, ...] = ()
    """Features of the bundle of a pool's lane, on a live server. Requests may contain these features."""


Lanes = tuple[Lane, ...]


def only(digest: str) -> Lanes:
    """Return the lanes that route all traffic to one bundle."""
    return (Lane(LIVE, digest, 1.0),)


@dataclass(frozen=True, slots=True)
class LaneTable:
    """The lanes of all checkpoints. A checkpoint without a bundle has an empty tuple."""

    version: int
    checkpoints: Mapping[str, Lanes]
    """Answer lanes by checkpoint."""
    observe: Mapping[str, Lanes] = field(default_factory=dict)
    """Observe lanes by checkpoint, without checkpoints that have none."""

    def bundles(self) -> set[str]:
        """Return the digests of all bundles in answer lanes."""
        return bundles_of(self.checkpoints)

    def to_dict(self, *, in_pool: bool = False) -> dict[str, Any]:
        """Convert the table for the data plane. Servers of the pool evaluate the lanes of the pool."""
        made: dict[str, Any] = {
            "version": self.version,
            "checkpoints": {
                checkpoint: [
                    {"name": lane.name, "bundle": lane.bundle, "share": lane.share} for lane in lanes
                ]
                for checkpoint, lanes in self.checkpoints.items()
            },
        }
        if self.observe:
            made["observe"] = {
                checkpoint: [
                    {
                        "name": lane.name,
                        "bundle": lane.bundle,
                        "sample": lane.sample,
                        "filter": parse_filter(lane.filter),
                        "pool": lane.pool and not in_pool,
                        **({"reads": list(lane.reads)} if lane.reads else {}),
                    }
                    for lane in lanes
                ]
                for checkpoint, lanes in self.observe.items()
            }
        return made


def without(lanes: Lanes, digest: str) -> Lanes:
    """Return the lanes of other bundles, with shares in the same proportion; empty if there are none."""
    kept = [lane for lane in lanes if lane.bundle != digest]
    total = sum(lane.share for lane in kept)
    if total <= 0:
        return ()
    return tuple(replace(lane, share=lane.share / total) for lane in kept)


def bundles_of(checkpoints: Mapping[str, Lanes]) -> set[str]:
    """Return the digests of all bundles in lanes."""
    return {lane.bundle for lanes in checkpoints.values() for lane in lanes}


def check_lanes(checkpoint: str, lanes: Sequence[Lane]) -> None:
    """Validate answer lanes before a bundle is loaded.

    Args:
        checkpoint: Name of the checkpoint, for messages.
        lanes: The answer lanes.

    Raises:
        InvalidLanesError: There are no lanes, a lane is not valid, or the shares do not add up to 1.
    """
    where = f'checkpoint "{checkpoint}"'
    if not lanes:
        raise InvalidLanesError(f"{where}: no lanes are given; give at least one")
    _check_names(where, lanes)
    for lane in lanes:
        if not (math.isfinite(lane.share) and 0 <= lane.share <= 1):
            raise InvalidLanesError(
                f'{where}: lane "{lane.name}" has share {lane.share:g}; a share is between 0 and 1'
            )
        if lane.sample or lane.filter or lane.pool:
            raise InvalidLanesError(
                f'{where}: lane "{lane.name}" has a sample, a filter or the pool, which is for lanes that '
                "observe; set those with `scorer observe` (SetObservers)"
            )
    total = math.fsum(lane.share for lane in lanes)
    if abs(total - 1) > _SUM_TOLERANCE:
        raise InvalidLanesError(f"{where}: the shares add up to {total:g}; they must add up to 1")


def check_observers(
    checkpoint: str, lanes: Sequence[Lane], *, features: Collection[str] | None = None
) -> None:
    """Validate observe lanes before a bundle is loaded.

    Args:
        checkpoint: Name of the checkpoint, for messages.
        lanes: The observe lanes; empty: the checkpoint is no longer observed.
        features: Features of the bundle that answers, to which filters may refer; None if they are not known.

    Raises:
        InvalidLanesError: A lane is not valid.
    """
    where = f'checkpoint "{checkpoint}"'
    _check_names(where, lanes)
    for lane in lanes:
        if lane.name == LIVE:
            raise InvalidLanesError(
                f'{where}: "{LIVE}" is the lane that answers; give the one that observes another name'
            )
        if not (math.isfinite(lane.sample) and 0 < lane.sample <= 1):
            raise InvalidLanesError(
                f'{where}: lane "{lane.name}" has sample {lane.sample:g}; a sample is above 0, to 1'
            )
        if lane.share:
            raise InvalidLanesError(
                f'{where}: lane "{lane.name}" has share {lane.share:g}; a lane that observes answers '
                "nothing: give it a sample"
            )
        parse_filter(lane.filter, where=f'{where}: lane "{lane.name}"', features=features)


def check_apart(checkpoint: str, answer: Sequence[Lane], observe: Sequence[Lane]) -> None:
    """Check that no answer lane and observe lane have the same name.

    Raises:
        InvalidLanesError: A name is used for both.
    """
    for name in sorted({lane.name for lane in answer} & {lane.name for lane in observe}):
        raise InvalidLanesError(
            f'checkpoint "{checkpoint}": lane "{name}" would answer and observe; give each its own name'
        )


def _check_names(where: str, lanes: Sequence[Lane]) -> None:
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
