"""Lanes without a bundle that is withdrawn."""

from __future__ import annotations

from dataclasses import replace

from scorer.control.lanes import Lanes


def without(lanes: Lanes, digest: str) -> Lanes:
    """The lanes of other bundles, which share all the traffic as they shared theirs; empty: none has any."""
    kept = [lane for lane in lanes if lane.bundle != digest]
    total = sum(lane.share for lane in kept)
    if total <= 0:
        return ()
    return tuple(replace(lane, share=lane.share / total) for lane in kept)
