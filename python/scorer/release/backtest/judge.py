"""The verdict of a backtest, by its gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scorer.release.backtest.actions import choices
from scorer.release.backtest.job import Job, Result
from scorer.release.backtest.measures import BacktestComparison, compare_actions, compare_scores
from scorer.release.backtest.rows import Evaluator, Labelled, Reading, ReportProgress, scores
from scorer.release.gates.evaluate import evaluate
from scorer.release.gates.evidence import ShadowEvidence, empty
from scorer.release.gates.measured import Measured, nothing
from scorer.release.model import GateResult, Outcome


def run(job: Job, report: ReportProgress) -> Result:
    """Read the logs, score both bundles, compare them and evaluate the gates.

    Raises:
        ScorerError: A bundle or a log cannot be read.
    """
    evaluation = Evaluator(job)
    if evaluation.lacking:
        names = ", ".join(evaluation.lacking[:5])
        return _not_comparable(job, evaluation.kind, f"the log does not hold its features {names}")
    of_actions = evaluation.kind == "action"
    found = Reading(job, evaluation, choices if of_actions else scores, report).read()
    compared = compare_actions(found) if of_actions else compare_scores(found, least=job.positives)
    if found.rules is None:
        return judge(job, evaluation.kind, found, compared)
    compared = replace(
        compared,
        measured={**compared.measured, **found.rules.measured},
        metrics={**compared.metrics, **found.rules.metrics},
    )
    result = judge(job, evaluation.kind, found, compared)
    if not evaluation.rules.given:
        return result
    notes = list(result.notes)
    if found.rules.uncounted:
        notes.append(
            f"The rules of {found.rules.uncounted:,} decisions are not counted: too many combinations."
        )
    if unlimited := found.rules.unlimited:
        notes.append(
            f"Daily budgets do not apply in a backtest. Rules that have one: {', '.join(unlimited)}."
        )
    return replace(result, rules=found.rules.report.document(), notes=notes)


def judge(job: Job, kind: str, found: Labelled, compared: BacktestComparison) -> Result:
    """Evaluate the job's gates on a comparison."""
    gates = judged(job, kind, compared)
    outcome = verdict(gates)
    rows, at = len(found.rows), found.rows.at
    words = (
        f"{rows:,} decisions with a known outcome, {compared.positives:,} of them positive: {outcome}"
        + _because(gates, outcome)
    )
    notes = [
        *found.notes,
        *(
            f"{count:,} decisions or reports left out: {why}."
            for why, count in sorted(found.left_out.items())
        ),
    ]
    return Result(
        outcome=outcome,
        words=words,
        rows=rows,
        positives=compared.positives,
        begin=int(at.min()) if rows else 0,
        end=int(at.max()) if rows else 0,
        gates=gates,
        metrics=compared.metrics,
        segments=compared.segments,
        missed=compared.missed,
        notes=notes,
    )


def judged(job: Job, kind: str, compared: BacktestComparison) -> tuple[GateResult, ...]:
    """Return the results of the job's gates for this kind of bundle."""

    def measure(name: str, _evidence: ShadowEvidence, _against: str, _minus: bool) -> Measured:
        return compared.measured.get(name) or nothing("these rows do not show it")

    evidence = ShadowEvidence(kind=kind, sla_us=0.0, shadow=empty(), control=empty())
    return evaluate(job.gates, evidence, measured_by=measure, backtest=True)


def verdict(gates: Sequence[GateResult]) -> Outcome:
    """Return fail if a gate that is not a dry run fails, and pass if all of them pass."""
    decides = [gate for gate in gates if not gate.dry_run]
    if any(gate.outcome is Outcome.FAIL for gate in decides):
        return Outcome.FAIL
    if not decides or any(gate.outcome is not Outcome.PASS for gate in decides):
        return Outcome.INCONCLUSIVE
    return Outcome.PASS


def _because(gates: Sequence[GateResult], outcome: Outcome) -> str:
    if outcome is Outcome.PASS:
        return ""
    wanted = [gate.words for gate in gates if gate.outcome is outcome and not gate.dry_run]
    return f" ({' '.join(dict.fromkeys(wanted))})" if wanted else ""


def _not_comparable(job: Job, kind: str, why: str) -> Result:
    """Return the result for bundles that cannot be compared."""
    names = [gate.metric for gate in job.gates]
    compared = BacktestComparison({name: nothing(why) for name in names}, {})
    gates = judged(job, kind, compared)
    return Result(Outcome.INCONCLUSIVE, f"nothing can be told: {why}", gates=gates, notes=[f"{why}."])
