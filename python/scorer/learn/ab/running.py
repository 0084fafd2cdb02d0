"""A comparison on a running server: started, watched, and ended through its control service.

::

    <directory>/plan.json          what was planned
    <directory>/readings.jsonl     every reading that was watched
    <directory>/ended.json         when it ended, how and why
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from scorer.control import client
from scorer.durable import write_atomically
from scorer.learn.ab.plan import AbPlan, Arm
from scorer.learn.ab.readout import AbReport
from scorer.learn.ab.settings import AbSettings
from scorer.learn.errors import DataError
from scorer.v1 import control_pb2 as pb

READINGS, ENDED = "readings.jsonl", "ended.json"
_TOLERANCE = 1e-9


def now_ms() -> int:
    """Return the current Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


def start(
    directory: Path,
    address: str,
    checkpoint: str,
    control: str,
    variants: Iterable[tuple[str, str, float]],
    settings: AbSettings,
    *,
    reason: str = "",
    clock_ms: Callable[[], int] = now_ms,
) -> AbPlan:
    """Sets the lanes, then writes the plan with the digests that are served.

    Args:
        directory: of the comparison.
        address: the control service.
        checkpoint: where.
        control: bundle, as `scorer lanes` takes it.
        variants: lane, bundle and share of each; the control has the rest.
        settings: `[ab]`.
        reason: kept in the server's log and the plan.
        clock_ms: Unix time.

    Raises:
        DataError: the directory holds a plan, or shares leave nothing.
        ControlError: the server refuses; nothing was changed.
    """
    wanted = list(variants)
    if (directory / "plan.json").exists():
        raise DataError(f'"{directory}" holds a plan; give each comparison its own directory')
    rest = 1.0 - sum(share for _, _, share in wanted)
    if not wanted or rest <= 0 or any(share <= 0 for _, _, share in wanted):
        raise DataError("the variants' shares must be above 0 and leave something for the control")
    lanes = [("control", control, rest), *wanted]
    _set(address, checkpoint, lanes, f"A/B: {reason}" if reason else "A/B starts")
    served = {lane.name: lane for lane in _lanes(address, checkpoint)}
    arms = tuple(Arm(lane=name, bundle=served[name].bundle, share=served[name].share) for name, _, _ in lanes)
    # Only now: what was decided before the swap was not drawn by these lanes.
    plan = AbPlan(checkpoint=checkpoint, arms=arms, started_ms=clock_ms(), settings=settings, reason=reason)
    plan.write(directory)
    return plan


def watch(
    directory: Path, address: str, found: AbReport, *, clock_ms: Callable[[], int] = now_ms
) -> dict[str, Any] | None:
    """Keeps a reading; on harm sets the lanes back. Calling it again after a crash ends in the same state.

    Returns:
        How the comparison ended, or None where it goes on.
    """
    plan = AbPlan.read(directory)
    if (ended := read_end(directory)) is not None:
        return ended
    with (directory / READINGS).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"at_ms": clock_ms(), **found.as_dict()}) + "\n")
    if not found.harm:
        return None
    worst = min(found.harm, key=lambda one: one.high)
    why = (
        f"harm: lane {worst.lane} is {worst.value * 100:+.2f} points from the control, at most "
        f"{worst.high * 100:+.2f} ({1 - plan.settings.alpha:.0%} at all readings together)"
    )
    return end(directory, address, how="set back", why=why, clock_ms=clock_ms)


def end(
    directory: Path,
    address: str,
    *,
    how: str,
    why: str,
    lane: str = "control",
    clock_ms: Callable[[], int] = now_ms,
) -> dict[str, Any]:
    """Gives one lane's bundle all traffic and writes down why.

    Lanes that somebody has changed since are left alone: that was a decision, too.
    """
    plan = AbPlan.read(directory)
    if (ended := read_end(directory)) is not None:
        return ended
    keep = next((arm for arm in plan.arms if arm.lane == lane), None)
    if keep is None:
        raise DataError(f'the plan has no lane "{lane}"; it has {", ".join(arm.lane for arm in plan.arms)}')
    before = [(one.name, one.bundle, one.share) for one in _lanes(address, plan.checkpoint)]
    if _same(before, [(arm.lane, arm.bundle, arm.share) for arm in plan.arms]):
        _set(address, plan.checkpoint, [("live", keep.bundle, 1.0)], f"A/B {how}: {why}")
    elif not _same(before, [("live", keep.bundle, 1.0)]):
        how = f"{how}, lanes left as they are: they were changed since"
    ended = {"at_ms": clock_ms(), "how": how, "why": why, "lane": lane, "bundle": keep.bundle}
    write_atomically(directory / ENDED, json.dumps(ended, indent=2).encode() + b"\n")
    return ended


def read_end(directory: Path) -> dict[str, Any] | None:
    """How the comparison ended; None while it runs."""
    try:
        found: dict[str, Any] = json.loads((directory / ENDED).read_bytes())
    except FileNotFoundError:
        return None
    return found


def _set(address: str, checkpoint: str, lanes: Iterable[tuple[str, str, float]], reason: str) -> None:
    request = pb.SetLanesRequest(
        checkpoint=checkpoint,
        lanes=[pb.Lane(name=name, bundle=bundle, share=share) for name, bundle, share in lanes],
        reason=reason,
    )
    with client.connected(address) as stub:
        client.call(stub.SetLanes, request, address)


def _lanes(address: str, checkpoint: str) -> list[pb.Lane]:
    with client.connected(address) as stub:
        found = client.call(stub.ListLanes, pb.ListLanesRequest(), address)
    for entry in found.checkpoints:
        if entry.checkpoint == checkpoint:
            return list(entry.lanes)
    raise DataError(
        f'the server at {address} has no checkpoint "{checkpoint}"; it has '
        f"{', '.join(entry.checkpoint for entry in found.checkpoints)}"
    )


def _same(ours: list[tuple[str, str, float]], theirs: list[tuple[str, str, float]]) -> bool:
    return len(ours) == len(theirs) and all(
        a[:2] == b[:2] and abs(a[2] - b[2]) < _TOLERANCE
        for a, b in zip(sorted(ours), sorted(theirs), strict=True)
    )
