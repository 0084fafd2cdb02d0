"""Judges a candidate against the live bundle on the last mature window."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scorer.bundle import Action, Feature, inspect
from scorer.learn.errors import DataError
from scorer.learn.experience import Experience, State
from scorer.learn.gate import figures
from scorer.learn.gate.estimate import PolicyComparison as Gathered
from scorer.learn.gate.estimate import gather, mature_window
from scorer.learn.gate.segments import judge_segments
from scorer.learn.gate.settings import GateSettings
from scorer.learn.gate.verdict import (
    CapUse,
    Check,
    JudgedBundle,
    SegmentVerdict,
    ValueInterval,
    Verdict,
    VerdictEvidence,
    Window,
    content_digest,
)
from scorer.learn.guardrails.audit import GuardrailFinding, audit
from scorer.learn.guardrails.caps import attribute_table
from scorer.learn.guardrails.settings import GuardrailSettings
from scorer.stats.arrays import Floats
from scorer.stats.means import effective_sample_size
from scorer.stats.sequences import anytime_mean


def judge(
    experience: Experience,
    candidate: Path,
    live: Path,
    gate: GateSettings,
    guardrails: GuardrailSettings,
    *,
    experience_digest: str,
) -> Verdict:
    """Decides: promote, mix or wait.

    Args:
        experience: decisions of the live policy (and of whatever else was served), in order of time.
        candidate: the bundle that wants to be live.
        live: the bundle that is.
        gate: the conditions.
        guardrails: caps and rules.
        experience_digest: what identifies the experience.

    Raises:
        DataError: catalogue or schema of a bundle and the experience differ, or there are no decisions.
    """
    if len(experience) == 0:
        raise DataError("gate: the experience is empty; join the log of the live policy first")
    one, other = _open(candidate, experience), _open(live, experience)
    taught = [judged.learned_until_ms or 0 for judged in (one, other)]
    window = mature_window(experience, gate.window_days, max(taught))
    inspection = inspect(candidate)
    return weigh(
        gather(window, candidate, live),
        one,
        other,
        gate,
        guardrails,
        actions=inspection.actions,
        features=inspection.data.features,
        findings=audit(window, live, guardrails.read_rules(), complete=guardrails.complete)
        if len(window)
        else (),
        experience_digest=experience_digest,
    )


def weigh(
    found: Gathered,
    one: JudgedBundle,
    other: JudgedBundle,
    gate: GateSettings,
    guardrails: GuardrailSettings,
    *,
    actions: Sequence[Action],
    features: Sequence[Feature],
    findings: Sequence[GuardrailFinding],
    experience_digest: str,
) -> Verdict:
    """The verdict on what was gathered about the candidate `one` and the live bundle `other`."""
    window = found.window
    at = Window(
        experience=experience_digest,
        start_ms=int(window.time_ms[0]) if len(window) else 0,
        end_ms=int(window.time_ms[-1]) if len(window) else 0,
        decisions=len(window),
        settled=int((window.state == State.SETTLED).sum()),
        missing=int((window.state == State.MISSING).sum()),
    )
    enough = len(found.settled) >= 2
    weights = found.weights(found.candidate)
    difference = _interval(found.difference(), gate)
    segments = judge_segments(found, features, gate) if enough else ()
    caps = _caps(found, actions, gate, guardrails)
    checks = (
        _unseen(one, gate),
        _enough(at, gate),
        _joined(at, gate),
        *_weights(weights, gate),
        _support(found, gate),
        _promises(findings),
        *_cap_checks(caps),
        _segment_check(segments, gate),
        _value_check(difference, gate),
    )
    worst, worse = -found.distance(), False
    if difference.low is not None and _trusted(checks, effective_sample_size(weights), gate):
        worst = max(worst, difference.low)
        worse = difference.high is not None and difference.high < 0
    decision, share, reasons = decide(checks, gate, worst=worst, worse=worse)
    evidence = VerdictEvidence(
        decision=decision,
        share=share,
        reasons=reasons,
        candidate=one,
        live=other,
        window=at,
        difference=difference,
        value=_interval(found.scores(found.candidate), gate),
        live_value=_interval(found.scores(found.live), gate),
        effective_rows=effective_sample_size(weights),
        mean_weight=float(weights.mean()) if enough else 0.0,
        largest_weight=float(weights.max(initial=0.0)),
        support=found.support() if enough else 0.0,
        distance=found.distance(),
        lanes=found.lanes,
        checks=checks,
        segments=segments,
        caps=caps,
        settings={"gate": gate.model_dump(mode="json"), "guardrails": guardrails.model_dump(mode="json")},
    )
    return Verdict(bundle=None, evidence=evidence, figures=figures.collect(found, actions))


# A candidate that fails one of these gets no share of the traffic either.
BLOCKING = ("unseen", "decisions", "joined", "propensities", "promises", "segments")


def decide(
    checks: tuple[Check, ...], gate: GateSettings, *, worst: float, worse: bool
) -> tuple[Any, float, tuple[str, ...]]:
    """Promote, mix or wait, the candidate's share, and why.

    The value of (1 - a) live + a candidate differs from that of live by a times the difference, so its
    lower bound is a times the lower bound: the largest share whose bound passes is margin / -worst.

    Args:
        checks: every condition.
        gate: the settings.
        worst: what the difference may be in the worst case: its lower bound, or where the weights are too few
            to trust that, minus the total variation between the policies, below which no difference is.
        worse: whether the candidate is shown to be worse.
    """
    failed = [check for check in checks if not check.passed]
    if not failed:
        return "promote", 1.0, ("every condition is met",)
    reasons = tuple(check.says for check in failed)
    blocking = [check for check in failed if check.name in BLOCKING or check.name.startswith("cap ")]
    if blocking:
        return "wait", 0.0, reasons
    if worse:
        return (
            "wait",
            0.0,
            (*reasons, "the candidate is shown to be worse: no share of the traffic is worth it"),
        )
    largest = 1.0 if worst >= -gate.margin else gate.margin / -worst
    allowed = [share for share in gate.shares if share <= largest and share < 1]
    if not allowed:
        smallest = min(gate.shares, default=1.0)
        why = f"at most {largest:.2%} of the traffic would be safe, the smallest share is {smallest:.1%}"
        return "wait", 0.0, (*reasons, why)
    share = max(allowed)
    lost = -min(worst, 0.0) * share * 100
    why = f"with {share * 100:g} % of the traffic at most {lost:.2f} points can be lost"
    return "mix", share, (*reasons, why)


def _trusted(checks: tuple[Check, ...], size: float, gate: GateSettings) -> bool:
    """Whether a bound may choose a share: as for a promotion, but for fewer effective decisions."""
    unsupported = any(check.name == "support" and not check.passed for check in checks)
    return size >= gate.bound_effective and not unsupported


def _open(path: Path, experience: Experience) -> JudgedBundle:
    experience.require_features("gate")
    inspection = inspect(path)
    if tuple(action.id for action in inspection.actions) != experience.actions:
        raise DataError(f'gate: "{path}" has another catalogue than the experience; judge it on its own log')
    width = len(inspection.data.features)
    if width != experience.context.shape[1]:
        raise DataError(
            f'gate: "{path}" takes {width} features, the experience has {experience.context.shape[1]};'
            " judge it on its own log"
        )
    manifest = json.loads((path / "manifest.json").read_bytes())
    return JudgedBundle(
        name=inspection.manifest.name,
        digest=inspection.digest,
        content=content_digest(manifest),
        learned_until_ms=learned_until(manifest["lineage"]),
    )


def learned_until(lineage: Any) -> int | None:
    """The last decision that taught a bundle: the latest `last_ms` anywhere in its lineage."""
    if isinstance(lineage, Mapping):
        # What judged an earlier revision did not teach it.
        inside = [learned_until(value) for key, value in lineage.items() if key != "gate"]
        own = lineage.get("last_ms")
        known = [value for value in (*inside, own) if isinstance(value, int)]
        return max(known, default=None)
    return None


def _interval(scores: Floats, gate: GateSettings) -> ValueInterval:
    found = anytime_mean(scores, gate.alpha)
    return ValueInterval(
        value=found.value,
        low=found.low if math.isfinite(found.low) else None,
        high=found.high if math.isfinite(found.high) else None,
        rows=found.rows,
    )


def _promises(findings: Sequence[GuardrailFinding]) -> Check:
    says = "; ".join(map(str, findings))
    return Check(
        name="promises",
        passed=not findings,
        says=says or "every logged pmf, mask and propensity is as promised",
    )


def _unseen(candidate: JudgedBundle, gate: GateSettings) -> Check:
    known = candidate.learned_until_ms is not None
    return Check(
        name="unseen",
        passed=known or not gate.require_lineage,
        says="no decision of the window taught the candidate"
        if known
        else "the candidate does not say until when it learned: build it with `scorer learn train`,"
        " or set gate.require_lineage = false",
    )


def _enough(at: Window, gate: GateSettings) -> Check:
    return Check(
        name="decisions",
        passed=at.settled >= gate.min_rows,
        says=f"{at.settled:,} settled decisions that neither policy learned from, {gate.min_rows:,} needed",
    )


def _joined(at: Window, gate: GateSettings) -> Check:
    share = at.settled / at.decisions if at.decisions else 0.0
    return Check(
        name="joined",
        # An empty window is too few decisions, not a failing join.
        passed=share >= gate.min_joined or not at.decisions,
        says=f"{share:.1%} of mature decisions have an outcome, {gate.min_joined:.1%} are needed",
    )


def _weights(weights: Floats, gate: GateSettings) -> tuple[Check, Check]:
    n = len(weights)
    mean = float(weights.mean()) if n else 0.0
    error = float(weights.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    fits = abs(mean - 1) <= gate.weight_errors * error + 1e-6
    size = effective_sample_size(weights)
    return (
        Check(
            name="propensities",
            passed=fits or n < 2,
            says=f"the mean weight is {mean:.3f} ± {error:.3f}; where propensities are right it is 1",
        ),
        Check(
            name="effective sample",
            passed=size >= gate.min_effective,
            says=f"the weights are worth {size:.0f} decisions, {gate.min_effective:.0f} are needed",
        ),
    )


def _support(found: Gathered, gate: GateSettings) -> Check:
    share = found.support() if len(found.settled) else 0.0
    return Check(
        name="support",
        passed=share >= gate.min_support,
        says=f"{share:.2%} of what the candidate would do could be logged, {gate.min_support:.2%} needed",
    )


def _caps(
    found: Gathered, actions: Sequence[Action], gate: GateSettings, guardrails: GuardrailSettings
) -> tuple[CapUse, ...]:
    names = [cap.attribute for cap in guardrails.caps]
    table = attribute_table(actions, names) if names else np.zeros((0, len(actions)))
    return tuple(
        CapUse(
            attribute=cap.attribute,
            limit=cap.limit,
            band=guardrails.controller.band,
            candidate=_interval(found.candidate @ use, gate),
            live=_interval(found.live @ use, gate),
        )
        for cap, use in zip(guardrails.caps, table, strict=True)
    )


def _cap_checks(caps: tuple[CapUse, ...]) -> tuple[Check, ...]:
    checks = []
    for cap in caps:
        most = cap.limit * (1 + cap.band)
        high = math.inf if cap.candidate.high is None else cap.candidate.high
        checks.append(
            Check(
                name=f"cap {cap.attribute}",
                passed=high <= most,
                says=f"the candidate uses {cap.candidate.value:.4g} of {cap.attribute} per decision (at most"
                f" {high:.4g}), the limit is {cap.limit:.4g}, its band {cap.band:.0%}",
            )
        )
    return tuple(checks)


def _segment_check(segments: tuple[SegmentVerdict, ...], gate: GateSettings) -> Check:
    harmed = [
        f"{one.column} {one.value} ({one.difference.value * 100:+.2f} points)"
        for one in segments
        if one.state == "harmed"
    ]
    unknown = sum(one.state == "inconclusive" for one in segments)
    if harmed:
        says = f"harmed: {', '.join(harmed)}"
    elif segments:
        says = f"no segment is shown to lose more than {gate.segment_margin * 100:g} points; {unknown} of"
        says += f" {len(segments)} are inconclusive"
    else:
        says = "no segments are configured, or none has decisions"
    return Check(name="segments", passed=not harmed, says=says)


def _value_check(difference: ValueInterval, gate: GateSettings) -> Check:
    low = -math.inf if difference.low is None else difference.low
    shown = "unknown" if difference.low is None else f"{low * 100:+.2f} points"
    return Check(
        name="value",
        passed=low > -gate.margin,
        says=f"the lower bound of candidate - live is {shown}, above {-gate.margin * 100:+.2f} is needed",
    )
