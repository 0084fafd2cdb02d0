"""The files that the platform and a backtest's process exchange: job, progress and result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scorer.durable import write_atomically
from scorer.log.proof import Unproven
from scorer.release import children
from scorer.release.model import GateResult, GateSpec, Outcome
from scorer.release.segments.settings import NO_PLAN, SegmentPlan

JOB, PROGRESS, RESULT = "job.json", "progress.json", "result.json"


@dataclass(frozen=True, slots=True)
class Job:
    """One backtest.

    Attributes:
        checkpoint: Name of the checkpoint.
        candidate: Directory of the candidate.
        live: Directory of the live bundle.
        others: Directories of further bundles whose decisions the logs may contain.
        logs: Locations of the decision logs by server.
        begin: Start of the window in microseconds since the Unix epoch.
        end: End of the window. The outcomes of decisions before it are final.
        outcome: Kind of the outcome.
        unproven: Whether unproven outcomes count.
        approve: Label that lets a payment pass.
        amount: Feature that value is measured by; empty: none.
        most: Rows that are held.
        positives: Fewest rows of each class that a score is judged by.
        gates: What decides.
        seconds: After this long, the rows read so far are judged.
        segments: How rows are split.
    """

    checkpoint: str
    candidate: str
    live: str
    others: tuple[str, ...]
    logs: Mapping[str, str]
    begin: int
    end: int
    outcome: str
    unproven: Unproven
    approve: str
    amount: str
    most: int
    positives: int
    gates: tuple[GateSpec, ...]
    seconds: float = 1_800.0
    segments: SegmentPlan = NO_PLAN


@dataclass(frozen=True, slots=True)
class BacktestProgress:
    """Progress of a running backtest."""

    share: float = 0.0
    """Share of the bytes that were read."""
    rows: int = 0
    """Decisions of the window so far."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a backtest.

    Attributes:
        outcome: Pass, fail or inconclusive, by the gates.
        words: The result in one sentence.
        rows: Number of labelled rows that both bundles scored.
        positives: Number of these rows with the outcome.
        begin: Time of the first row in microseconds since the Unix epoch; 0 without rows.
        end: Time of the last row.
        gates: Results of the gates.
        metrics: Metrics by name: `live`, `candidate`, `difference`, `low`, `high` (95 % each).
        segments: Metrics of segments of the rows.
        missed: Examples with the outcome that the live bundle flagged and the candidate does not.
        notes: Sentences about rows that were skipped and why.
        rules: The report of the rules (`scorer.log.rule_backtest`); None if neither bundle has rules.
    """

    outcome: Outcome
    words: str
    rows: int = 0
    positives: int = 0
    begin: int = 0
    end: int = 0
    gates: Sequence[GateResult] = ()
    metrics: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    segments: Sequence[Mapping[str, Any]] = ()
    missed: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    rules: Mapping[str, Any] | None = None


def write_job(folder: Path, job: Job) -> None:
    """Write the job of a backtest."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / JOB, json.dumps(asdict(job)).encode())


def read_job(folder: Path) -> Job:
    """Read the job of a backtest."""
    found = json.loads((folder / JOB).read_bytes())
    gates = tuple(GateSpec(**one) for one in found.pop("gates"))
    segments = SegmentPlan.restored(found.pop("segments")) if "segments" in found else NO_PLAN
    return Job(**{**found, "others": tuple(found["others"]), "gates": gates, "segments": segments})


def write_progress(folder: Path, progress: BacktestProgress) -> None:
    """Write the progress of the backtest."""
    children.write_progress(folder / PROGRESS, asdict(progress))


def read_progress(folder: Path) -> BacktestProgress:
    """Read the progress; zero if none was written yet."""
    try:
        return BacktestProgress(**json.loads((folder / PROGRESS).read_bytes()))
    except (OSError, ValueError, TypeError):
        return BacktestProgress()


def write_result(folder: Path, result: Result) -> None:
    """Write the result, which ends the backtest."""
    write_atomically(folder / RESULT, json.dumps(as_document(result), allow_nan=False).encode())


def read_result(folder: Path) -> Result | None:
    """Read the result; None if there is none yet."""
    try:
        return from_document(json.loads((folder / RESULT).read_bytes()))
    except FileNotFoundError:
        return None


def as_document(result: Result) -> dict[str, Any]:
    """Return a result as JSON values."""
    return {
        **asdict(result),
        "outcome": result.outcome.value,
        "gates": [{**asdict(gate), "outcome": gate.outcome.value} for gate in result.gates],
    }


def from_document(found: Mapping[str, Any]) -> Result:
    """Return the result of JSON values that `as_document` returned."""
    gates = tuple(GateResult(**{**gate, "outcome": Outcome(gate["outcome"])}) for gate in found["gates"])
    return Result(**{**found, "outcome": Outcome(found["outcome"]), "gates": gates})
