"""The job `drift`: a new alert of the checkpoint begins a generation, which ends in a TEST.

The job is made to be called every few minutes. It does nothing without a new alert, within the cool-down, or
while a run of the workspace is under way. A generation that it began is continued after a kill.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scorer.durable import write_atomically
from scorer.learn.errors import DataError
from scorer.learn.schedule.generation import RunReport, is_under_way, run_generation
from scorer.learn.schedule.places import DRIFT, GenerationPaths
from scorer.learn.schedule.runner import Done
from scorer.learn.schedule.workspace import BusyError, Workspace, as_of_ms

if TYPE_CHECKING:
    from scorer.drift.monitor import DriftAlert
    from scorer.learn.gate.publish import ChangeRequests
    from scorer.learn.settings import LearnSettings

_HANDLED: Final = "drift.json"
_MOST: Final = 20
"""Causes and findings of an alert that a change request carries."""


def run_drift(
    workspace: Workspace,
    settings: LearnSettings,
    base: Path,
    *,
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    requests: ChangeRequests | None = None,
) -> RunReport:
    """Run a generation if an alert of drift requires one.

    Args:
        workspace: Where.
        settings: learn.toml.
        base: The folder of that file.
        clock_ms: Unix time in milliseconds.
        requests: The platform that manages the checkpoint; None: none does.

    Raises:
        DataError: `[schedule] drift_state` is not set, or a step of the generation cannot be done.
        LogError: The state of drift detection cannot be read.
    """
    plan = settings.schedule
    if not plan.drift_state:
        raise DataError(
            "schedule.drift_state is not set; name the file of `scorer drift run`, or drift.sqlite in the "
            "data_dir of the platform"
        )
    now, places = clock_ms(), GenerationPaths(settings, base)
    generations = workspace.generations()
    newest = generations[-1] if generations else None
    if newest is not None and is_under_way(settings, places, newest, now):
        if not (newest / DRIFT).is_file():
            return _kept(workspace, "a generation is under way")
        return _run(workspace, settings, base, newest, requests, clock_ms)
    handled = _handled(workspace)
    alert = _newest(base / plan.drift_state, plan.checkpoint)
    if alert is None or alert.id <= handled.get("alert", 0):
        return _kept(workspace, "there is no new alert")
    age = now / 1000 - alert.last.timestamp()
    if age > plan.drift_late_hours * 3_600:
        return _kept(workspace, f"alert {alert.id} is {age / 3_600:.0f} h old")
    since = (now - handled["begun_ms"]) / 3_600_000 if handled else float("inf")
    if since < plan.drift_cool_down_hours:
        return _kept(workspace, f"the last generation after drift began {since:.1f} h ago")
    folder = workspace.generation(now)
    with workspace.locked():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / DRIFT, json.dumps(evidence_of(alert), indent=1).encode() + b"\n")
        record = {"alert": alert.id, "begun_ms": now, "generation": folder.name}
        write_atomically(workspace.path / _HANDLED, json.dumps(record).encode() + b"\n")
    return _run(workspace, settings, base, folder, requests, clock_ms)


def evidence_of(alert: DriftAlert) -> dict[str, Any]:
    """Return what a change request carries of an alert."""
    own = alert.evidence
    return {
        "alert": alert.id,
        "checkpoint": alert.checkpoint,
        "lane": alert.lane,
        "opened": alert.opened.astimezone(UTC).isoformat(),
        "summary": alert.summary,
        "causes": list(own.get("causes", []))[:_MOST],
        "findings": list(own.get("findings", []))[:_MOST],
        "segments": list(own.get("slices", []))[:_MOST],
        "performance": own.get("performance"),
    }


def _run(
    workspace: Workspace,
    settings: LearnSettings,
    base: Path,
    folder: Path,
    requests: ChangeRequests | None,
    clock_ms: Callable[[], int],
) -> RunReport:
    try:
        return run_generation(
            workspace, settings, base, as_of_ms=as_of_ms(folder), clock_ms=clock_ms, requests=requests
        )
    except BusyError as error:
        return _kept(workspace, str(error))


def _kept(workspace: Workspace, why: str) -> RunReport:
    return RunReport(workspace.path, (Done("drift", "kept", 0.0, {"waits": why}),))


def _handled(workspace: Workspace) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = json.loads((workspace.path / _HANDLED).read_bytes())
    except FileNotFoundError:
        return {}
    return found


def _newest(state: Path, checkpoint: str) -> DriftAlert | None:
    from scorer.drift.monitor import alerts
    from scorer.drift.state import DriftState

    if not state.is_file():
        raise DataError(f'schedule.drift_state: "{state}" does not exist; start `scorer drift run` first')
    return next(iter(alerts(DriftState(state), checkpoint, limit=1)), None)
