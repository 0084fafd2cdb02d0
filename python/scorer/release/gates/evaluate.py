"""Evaluation of gates: pass, fail or inconclusive, each with a sentence. It is deterministic.

The false-alarm rate is controlled for the whole set: all gates that a good model can fail by chance share one
probability of doing so, `ALARM`, in equal parts (Bonferroni). A gate that is evaluated repeatedly divides its
part among its interim analyses (interim.py). The confidence that a pass requires is part of the gate
("upper95").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from scorer.release.gates import interim
from scorer.release.gates.evidence import ShadowEvidence
from scorer.release.gates.grammar import Gate, Limit, read_all
from scorer.release.gates.measured import Measured, nothing
from scorer.release.gates.metrics import measure, quantity
from scorer.release.gates.names import SEGMENTS
from scorer.release.gates.words import say
from scorer.release.model import GateResult, GateSpec, Outcome
from scorer.stats.interim import alpha_share, interval_alpha

ALARM = 0.02
"""False-alarm rate: the probability that the gates together fail a bundle that is the live one."""
SEGMENT_ALARM = 0.01
"""False-alarm rate of all segments together; part of `ALARM` if segments decide."""

Measure = Callable[[str, ShadowEvidence, str, bool], Measured]


def evaluate(
    specs: Sequence[GateSpec],
    evidence: ShadowEvidence,
    *,
    waivers: Mapping[str, tuple[str, str]] | None = None,
    alarm: float = ALARM,
    repeated: bool = False,
    measured_by: Measure = measure,
    backtest: bool = False,
    settled: Collection[str] = (),
    segments: Measured | None = None,
) -> tuple[GateResult, ...]:
    """Evaluate every gate that applies to this kind of checkpoint.

    Args:
        specs: The gates.
        evidence: The observations, and the facts about bundles and settings.
        waivers: User and reason of each waiver, by metric.
        alarm: False-alarm rate of all gates together.
        repeated: Whether the gates are evaluated repeatedly while rows arrive, as in a canary.
        measured_by: Function that computes a metric; a canary uses its own.
        backtest: Whether the gates are those of a backtest.
        settled: For a canary, the metrics that have passed on the pairs of the shadow. Two lanes with
            different requests need ten times as many rows as pairs. A gate that is inconclusive on the
            canary's lanes, and does not fail, therefore passes by its pairs.
        segments: Value of the metric of segments; None if rows are not split.

    Returns:
        The results, in the order of the gates.

    Raises:
        InvalidError: A gate is not valid.
    """

    def by(name: str, given: ShadowEvidence, against: str, minus: bool) -> Measured:
        if name == SEGMENTS:
            return segments or nothing("rows are not split by any feature")
        return measured_by(name, given, against, minus)

    gates = [gate for gate in read_all(specs, backtest=backtest) if evidence.kind in gate.names.kinds]
    if any(gate.spec.metric == SEGMENTS and not gate.spec.dry_run for gate in gates):
        alarm -= min(SEGMENT_ALARM, alarm / 2)
    part = alarm / max(sum(gate.names.by_chance and not gate.spec.dry_run for gate in gates), 1)
    results = []
    for gate in gates:
        result = _judge(gate, evidence, part, repeated, by)
        if gate.spec.metric in settled:
            result = _by_pairs(gate, result)
        user, why = (waivers or {}).get(gate.spec.metric, ("", ""))
        results.append(replace(result, waived_by=user, waived_why=why))
    return tuple(results)


def _judge(gate: Gate, evidence: ShadowEvidence, part: float, repeated: bool, by: Measure) -> GateResult:
    if gate.when is not None:
        found = quantity(gate.when.quantity, evidence)
        if not gate.when.holds(found):
            asked = f"{gate.when.quantity} is {found:g}, {gate.spec.when} is required"
            words = f"{gate.names.title} is not judged yet: {asked}."
            # The result does not block the change: labels take weeks, and the sentence states the condition.
            return replace(_result(gate, Outcome.INCONCLUSIVE, words), dry_run=True)
    if gate.spec.interval_seconds:
        return _by_interval(gate, evidence, part, by)
    if repeated and gate.names.by_chance:
        return _repeatedly(gate, evidence, part, by)
    return _look(gate, evidence, part, by)


def _by_interval(gate: Gate, evidence: ShadowEvidence, part: float, by: Measure) -> GateResult:
    """Evaluate a gate on disjoint intervals. As many of them may fail as the gate's limit allows."""
    spec = gate.spec
    alpha = interval_alpha(part, spec.count, spec.failure_limit)
    results = [
        _look(gate, one, alpha, by) for one in interim.intervals(evidence, spec.interval_seconds, spec.count)
    ]
    failed = sum(one.outcome is Outcome.FAIL for one in results)
    unclear = sum(one.outcome is Outcome.INCONCLUSIVE for one in results)
    whole = _look(gate, evidence, part, by)
    told = (
        f"{len(results)} of {spec.count} intervals of {spec.interval_seconds} s: "
        f"{failed} failed, {unclear} inconclusive"
    )
    if failed > spec.failure_limit:
        outcome, why = Outcome.FAIL, f"more than the {spec.failure_limit} that may"
    elif len(results) < spec.count:
        outcome, why = Outcome.INCONCLUSIVE, "more time is needed"
    elif unclear > spec.inconclusive_limit:
        outcome, why = Outcome.INCONCLUSIVE, f"more than the {spec.inconclusive_limit} that may"
    else:
        outcome, why = Outcome.PASS, "within the limits"
    return replace(whole, outcome=outcome, words=f"{told}, {why}. Overall: {whole.words}")


def _repeatedly(gate: Gate, evidence: ShadowEvidence, part: float, by: Measure) -> GateResult:
    """Evaluate at growing numbers of rows, each interim analysis with its share of the false-alarm rate."""
    last: GateResult | None = None
    for at, prefix in enumerate(interim.prefixes(evidence, least=gate.spec.min_rows), start=1):
        last = _look(gate, prefix, part * alpha_share(at), by)
        if last.outcome is Outcome.FAIL:
            return last
    if last is not None:
        return last
    result = _look(gate, evidence, part, by)
    if result.outcome is Outcome.INCONCLUSIVE:
        return result
    least = max(gate.spec.min_rows, interim.FIRST)
    asked = f"{result.rows:,} rows, the first interim analysis takes {least:,}"
    words = f"{gate.names.title} is not judged yet: {asked}."
    return replace(result, outcome=Outcome.INCONCLUSIVE, words=words)


def _by_pairs(gate: Gate, result: GateResult) -> GateResult:
    """Pass an inconclusive comparison of lanes by the pairs of the shadow, except for times."""
    least = max(gate.spec.min_rows, interim.FIRST)
    if result.outcome is not Outcome.INCONCLUSIVE or result.rows < least or gate.names.unit == "time":
        return result
    words = f"{result.words} It passes by its pairs in the shadow, and these rows do not fail it."
    return replace(result, outcome=Outcome.PASS, words=words)


def _look(gate: Gate, evidence: ShadowEvidence, alpha: float, by: Measure) -> GateResult:
    found = by(gate.spec.metric, evidence, gate.against, bool(gate.spec.minus))
    limit, chance = _limit(gate.success.limit, evidence, found, alpha)
    if found.missing:
        words = f"{gate.names.title} is not known: {found.missing}."
        return replace(_result(gate, Outcome.INCONCLUSIVE, words), rows=found.rows, threshold=_plain(limit))
    low, high = math.nan, math.nan
    if gate.success.side and found.bounds is not None:
        low, high = found.bounds(gate.success.confidence)
    if gate.success.limit.of_chance:
        outcome, why = _by_chance(gate, found, limit, chance)
    elif gate.success.side and found.bounds is not None:
        outcome, why = _by_bounds(gate, found, limit, alpha, (low, high))
    else:
        outcome, why = _by_value(gate, found, limit)
    if found.rows < gate.spec.min_rows:
        outcome, why = Outcome.INCONCLUSIVE, f"{gate.spec.min_rows:,} rows are needed"
    return replace(
        _result(gate, outcome, say(gate, found, limit, (low, high), why)),
        value=_plain(found.value),
        low=_plain(low),
        high=_plain(high),
        threshold=_plain(limit),
        rows=found.rows,
    )


def _by_value(gate: Gate, found: Measured, limit: float) -> tuple[Outcome, str]:
    if gate.success.holds(_size(gate, found.value), limit):
        return Outcome.PASS, ""
    if gate.names.grows and not gate.success.is_upper:
        return Outcome.INCONCLUSIVE, "more time is needed"
    return Outcome.FAIL, ""


def _by_chance(gate: Gate, found: Measured, limit: float, chance: float) -> tuple[Outcome, str]:
    if not gate.success.holds(found.value, limit):
        return Outcome.FAIL, ""
    floor = gate.success.limit.floor
    if chance > floor > 0:
        # Random variation is larger than the floor, so a difference of that size could not be detected.
        return (
            Outcome.INCONCLUSIVE,
            f"chance alone reaches {chance:.3g} with so few rows, {floor:g} could not be told",
        )
    return Outcome.PASS, ""


def _by_bounds(
    gate: Gate, found: Measured, limit: float, alpha: float, bounds: tuple[float, float]
) -> tuple[Outcome, str]:
    assert found.bounds is not None  # noqa: S101 - the caller looked
    low, high = bounds
    success = gate.success
    if success.absolute:
        passes = success.holds(max(abs(low), abs(high)), limit)
        lower, upper = found.bounds(1 - alpha / 2)
        fails = lower > limit or upper < -limit
    else:
        passes = success.holds(high if success.side == "upper" else low, limit)
        lower, upper = found.bounds(1 - alpha)
        fails = not success.holds(lower if success.side == "upper" else upper, limit)
    if passes:
        return Outcome.PASS, ""
    if fails:
        return Outcome.FAIL, ""
    return Outcome.INCONCLUSIVE, "more rows are needed to tell"


def _limit(limit: Limit, evidence: ShadowEvidence, found: Measured, alpha: float) -> tuple[float, float]:
    """Return the limit as a number, and the value that random variation alone reaches."""
    if limit.of_sla:
        return limit.number * evidence.sla_us, 0.0
    if not limit.of_chance:
        return limit.number, 0.0
    chance = found.chance(limit.alpha or alpha) if found.chance is not None else math.nan
    return max(limit.floor, chance) if math.isfinite(chance) else limit.floor, chance


def _size(gate: Gate, value: float) -> float:
    return abs(value) if gate.success.absolute else value


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _result(gate: Gate, outcome: Outcome, words: str) -> GateResult:
    return GateResult(
        metric=gate.spec.metric,
        outcome=outcome,
        value=None,
        low=None,
        high=None,
        threshold=None,
        rows=0,
        success=gate.spec.success,
        words=words,
        dry_run=gate.spec.dry_run,
    )
