"""The expected ends of the present stage and of the release, and what the stage waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from scorer.release.answers import Outlook
from scorer.release.calendar import moment
from scorer.release.changes.stages import number_of, to_come
from scorer.release.gates.interim import FIRST
from scorer.release.gates.names import METRICS
from scorer.release.model import PLATFORM, ChangeRequest, FreezeWindow, GateResult, Outcome, Stage


def outlook(
    change: ChangeRequest,
    stages: Sequence[Stage],
    gates: Sequence[GateResult],
    *,
    mark: datetime | None,
    least: Mapping[str, int],
    settling: str,
    patience: timedelta,
    frozen: FreezeWindow | None,
    now: datetime,
) -> Outlook:
    """Describe a release under way.

    Args:
        change: The change request, in the state `released`.
        stages: All stages of the release.
        gates: Results of the present stage.
        mark: Time at which all servers had the lanes of the stage; None: not yet.
        least: Number of rows that a gate requires, by metric.
        settling: Description of what the step waits for while `mark` is None.
        patience: Time after the end of a stage in which inconclusive gates may still pass.
        frozen: The freeze in force, if any.
        now: The present time.
    """
    number = number_of(change.step)
    if number is None:
        return Outlook(len(stages) + 1, len(stages), 1.0, None, None, tuple(filter(None, [settling])))
    stage = stages[number - 1]
    ahead = to_come(change, stages)
    waits: list[str] = []
    by_time = (mark or now) + timedelta(minutes=stage.minutes)
    ends: datetime | None = by_time
    if mark is None:
        waits.append(settling or "the servers take its lanes")
    else:
        if now < by_time:
            waits.append(f"its {stage.minutes:g} minutes are over at {moment(by_time)}")
        for said, when in _rows(gates, least, mark, now):
            waits.append(said)
            ends = None if ends is None or when is None else max(ends, when)
        if now >= by_time and any(gate.blocks for gate in gates) and change.paused_at is None:
            ends = None
            since = max(by_time, change.resumed_at or by_time)
            waits.append(f"it is rolled back at {moment(since + patience)} unless its gates have passed")
    if frozen:
        waits.append(f'frozen by "{frozen.freeze.name}" until {moment(frozen.end)}')
        ends = None if ends is None else max(ends, frozen.end)
    if change.paused_at is not None:
        ends = None
        waits.insert(
            0,
            "an approver promotes it, by its plan"
            if change.paused_by == PLATFORM.user
            else f"paused by {change.paused_by} since {moment(change.paused_at)}",
        )
    elif stage.pause:
        waits.append("an approver promotes it at its end")
    whole = None
    if ends is not None and not any(stages[one - 1].pause for one in (number, *ahead)):
        whole = ends + timedelta(minutes=sum(stages[one - 1].minutes for one in ahead))
    return Outlook(number, len(stages), stage.share, ends, whole, tuple(waits), tuple(ahead))


def _rows(
    gates: Sequence[GateResult], least: Mapping[str, int], mark: datetime, now: datetime
) -> list[tuple[str, datetime | None]]:
    """Return, for each gate without a result, what it waits for and the expected time of its last row."""
    found: list[tuple[str, datetime | None]] = []
    for gate in gates:
        if not gate.blocks or gate.outcome is not Outcome.INCONCLUSIVE:
            continue
        title = METRICS[gate.metric].title if gate.metric in METRICS else gate.metric
        needed = max(least.get(gate.metric, 0), FIRST)
        if gate.rows < needed:
            took = now - mark
            when = now + took * ((needed - gate.rows) / gate.rows) if gate.rows else None
            found.append((f"{title}: {gate.rows:,} of {needed:,} rows", when))
        else:
            found.append((f"{title}: no result yet with {gate.rows:,} rows", None))
    return found
