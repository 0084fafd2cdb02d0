"""The evidence of the shadow and of the backtest about a candidate, in windows of the judged payments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from loadtests.windows import LABELS, latencies, observed, twin
from loadtests.zoo.candidates import Candidate
from loadtests.zoo.payments import Payments
from scorer.bundle.statistics import distribution
from scorer.log.columns import Ragged
from scorer.release.backtest.job import Job
from scorer.release.backtest.judge import judged
from scorer.release.backtest.measures import compare_scores
from scorer.release.backtest.rows import Labelled, Scored
from scorer.release.gates.defaults import BACKTEST, SCORE
from scorer.release.gates.evaluate import evaluate
from scorer.release.gates.evidence import ShadowEvidence
from scorer.release.model import GateResult

Places = npt.NDArray[np.intp]

SLA_US = 5_000.0
_MEDIAN_US = 200.0
_JOB = Job(
    checkpoint="fraud",
    candidate="",
    live="",
    others=(),
    logs={},
    begin=0,
    end=0,
    outcome="fraud",
    unproven="exclude",
    approve="approve",
    amount="amount",
    most=1_000_000,
    positives=30,
    gates=BACKTEST,
)


def bands(scores: npt.NDArray[np.float64], candidate: Candidate) -> npt.NDArray[np.int64]:
    """Return the bands of the scores as indices of `LABELS`."""
    return 1 + np.searchsorted(candidate.thresholds, scores, side="right")


def shadow(
    live: Candidate, candidate: Candidate, places: Places, random: np.random.Generator
) -> tuple[GateResult, ...]:
    """Judge the observations of some payments by the shadow gates that decide.

    Args:
        live: The live model.
        candidate: The candidate.
        places: Indices of the payments among the judged ones.
        random: Generator of times and of the control.
    """
    before, own = live.scores[places], candidate.scores[places]
    rows = len(places)
    # (slower - 1) times the SLA is added to each latency.
    times = latencies(rows, random, median=_MEDIAN_US, spread=0.25) + SLA_US * (candidate.slower - 1)
    plain = np.where(np.isfinite(own), own, 0.0)
    seen = observed(rows, random, live=before, own=plain, exec_us=times, full=False)
    seen = replace(
        seen,
        score=own,
        label=bands(plain, candidate),
        live_label=bands(before, live),
        error=np.where(np.isfinite(own), 0, 2),
    )
    assert seen.names["label"] == list(LABELS)
    evidence = ShadowEvidence(
        kind="score",
        sla_us=SLA_US,
        shadow=seen,
        control=twin(seen, random),
        reference=distribution(candidate.reference[np.isfinite(candidate.reference)]),
        parity=(min(rows, 2_000), 0.0),
    )
    return tuple(result for result in evaluate(SCORE, evidence) if not result.dry_run)


def backtest(
    payments: Payments, live: Candidate, candidate: Candidate, places: Places
) -> tuple[GateResult, ...]:
    """Judge some payments whose outcome is known by the backtest gates that decide.

    Args:
        payments: All payments.
        live: The live model.
        candidate: The candidate.
        places: Indices of the payments among the judged ones.
    """
    at = payments.judged[places]
    rows = len(places)
    scored = Scored(
        key=np.arange(rows, dtype=np.uint64),
        sequence=np.arange(rows, dtype=np.uint64),
        log=np.zeros(rows, np.int32),
        at=payments.at_ms[at] * 1_000,
        passed=np.ones(rows, bool),
        values={
            "candidate": candidate.scores[places],
            "live": live.scores[places],
            "live_band": bands(live.scores[places], live) - 1.0,
        },
        segments=np.zeros((rows, 0), np.int32),
        amount=payments.rows[at, 0],
        id=Ragged(np.zeros(0, np.uint8), np.zeros(rows, np.int64)),
    )
    found = Labelled(scored, payments.fraud[at].astype(np.float64), (), LABELS[1:])
    compared = compare_scores(found, least=_JOB.positives)
    return tuple(result for result in judged(_JOB, "score", compared) if not result.dry_run)
