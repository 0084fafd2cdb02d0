"""The files between the platform and a backtest's process: its job, its progress, its result."""

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

JOB, PROGRESS, RESULT = "job.json", "progress.json", "result.json"


@dataclass(frozen=True, slots=True)
class Job:
    """One backtest.

    Attributes:
        checkpoint: Whose decisions.
        candidate: Directory of the candidate.
        live: Directory of the bundle that answers.
        others: Directories of further bundles whose rows the logs may hold.
        logs: Decision logs, by server.
        begin: First moment of the window, microseconds since the Unix epoch.
        end: End of the window: decisions before it have the outcome that they will have.
        outcome: Kind of the outcome.
        unproven: Whether unproven outcomes count.
        approve: Label that lets a payment pass.
        amount: Feature that value is measured by; empty: none.
        most: Rows that are held.
        positives: Fewest rows of each class that a score is judged by.
        gates: What decides.
        seconds: After this long, the rows read so far are judged.
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


@dataclass(frozen=True, slots=True)
class BacktestProgress:
    """How far a backtest is."""

    share: float = 0.0
    """Of the bytes to read."""
    rows: int = 0
    """Decisions of the window so far."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a backtest.

    Attributes:
        outcome: Pass, fail or inconclusive, by the gates.
        words: One sentence.
        rows: Labelled rows that both bundles scored.
        positives: Of these, with the outcome.
        begin: Time of the first of them, microseconds; 0 without rows.
        end: Time of the last of them.
        gates: Results of the gates.
        metrics: By name: `live`, `candidate`, `difference`, `low`, `high` (95 % each).
        segments: Metrics of parts of the rows.
        missed: What the candidate does not flag and the live bundle did, with the known outcome.
        notes: What was left out and why, in sentences.
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


def write_job(folder: Path, job: Job) -> None:
    """Write what is to be done."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / JOB, json.dumps(asdict(job)).encode())


def read_job(folder: Path) -> Job:
    """Return what is to be done."""
    found = json.loads((folder / JOB).read_bytes())
    gates = tuple(GateSpec(**one) for one in found.pop("gates"))
    return Job(**{**found, "others": tuple(found["others"]), "gates": gates})


def write_progress(folder: Path, progress: BacktestProgress) -> None:
    """Write how far the backtest is."""
    children.write_progress(folder / PROGRESS, asdict(progress))


def read_progress(folder: Path) -> BacktestProgress:
    """Return how far it is; the beginning where nothing was written yet."""
    try:
        return BacktestProgress(**json.loads((folder / PROGRESS).read_bytes()))
    except (OSError, ValueError, TypeError):
        return BacktestProgress()


def write_result(folder: Path, result: Result) -> None:
    """Write what came of it; after that the backtest is done."""
    write_atomically(folder / RESULT, json.dumps(as_document(result), allow_nan=False).encode())


def read_result(folder: Path) -> Result | None:
    """Return what came of it; None where it is not done."""
    try:
        return from_document(json.loads((folder / RESULT).read_bytes()))
    except FileNotFoundError:
        return None


def as_document(result: Result) -> dict[str, Any]:
    """Return a result as JSON has it."""
    return {
        **asdict(result),
        "outcome": result.outcome.value,
        "gates": [{**asdict(gate), "outcome": gate.outcome.value} for gate in result.gates],
    }


def from_document(found: Mapping[str, Any]) -> Result:
    """Return the result of a document."""
    gates = tuple(GateResult(**{**gate, "outcome": Outcome(gate["outcome"])}) for gate in found["gates"])
    return Result(**{**found, "outcome": Outcome(found["outcome"]), "gates": gates})
