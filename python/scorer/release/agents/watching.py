"""Tools that read metrics, drift, reports and outcomes, and that evaluate edited rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from scorer.release.errors import InvalidError
from scorer.release.requests import DecisionFilter, NewAdoptionAnalysis
from scorer.stats.proportions import independent_difference, wilson

if TYPE_CHECKING:
    from scorer.figure import Figure
    from scorer.release.agents import arguments as asked_of
    from scorer.release.agents.tools import ToolCall
    from scorer.release.decisions.sampling import SampledDecision

_CONFIDENCE: Final = 0.975
"""One-sided, so that intervals have 95 %."""
_LEVELS: Final = 50
_BANDS: Final = 5


def list_changes(call: ToolCall, asked: asked_of.ListChanges) -> Any:
    """Return change requests, newest first."""
    found = call.service.changes.list(
        call.actor, project=asked.project, checkpoint=asked.checkpoint, state=asked.state, limit=asked.limit
    )
    return {
        "changes": [
            {
                name: getattr(one, name)
                for name in (
                    "id", "project", "kind", "checkpoint", "bundle", "bundle_name", "title", "state", "step",
                    "verdict", "note", "created_by", "created_at", "updated_at", "version", "agent",
                )
            }
            for one in found
        ]
    }  # fmt: skip


def read_report(call: ToolCall, asked: asked_of.ReadReport) -> Any:
    """Return a change request with its gates, its backtest and its report."""
    detail = call.service.changes.get(call.actor, asked.change)
    found: dict[str, Any] = {
        "change": detail.change,
        "steps": detail.steps,
        "gates": detail.gates,
        "backtest": detail.backtest,
        "outlook": detail.outlook,
    }
    if detail.change.state in ("draft", "checks", "booked"):
        return {**found, "report": None, "why_no_report": "it has not been observed yet"}
    readout = call.service.readouts.readout(call.actor, asked.change)
    return {**found, "report": replace(readout, figures=tuple(map(_shortened, readout.figures)))}


def _shortened(figure: Figure, points: int = 40) -> Figure:
    """Return a figure with its newest rows only."""
    return replace(figure, rows=list(figure.rows)[-points:])


def live_metrics(call: ToolCall, asked: asked_of.LiveMetrics) -> Any:
    """Return the newest points of the metrics over time."""
    found = call.service.metrics.metrics(call.actor, asked.checkpoint, window=asked.window)
    return replace(found, figures=tuple(_shortened(one, asked.points) for one in found.figures))


def drift_status(call: ToolCall, asked: asked_of.OfCheckpoint) -> Any:
    """Return the latest look of each lane for drift, and the alerts."""
    return call.service.drift.drift(call.actor, asked.checkpoint)


def backtest_rules(call: ToolCall, asked: asked_of.BacktestRules) -> Any:
    """Return which recorded decisions edited rules change."""
    bundle = call.service.trying.bundle(call.actor, asked.checkpoint, asked.bundle).info.digest
    checked = call.service.authoring.check(call.actor, bundle, asked.rules)
    if not checked.ok:
        return {"bundle": bundle, "problems": checked.problems, "blast_radius": None, "difference": []}
    return {
        "bundle": bundle,
        "problems": [],
        "blast_radius": call.service.authoring.blast(
            call.actor, bundle, asked.checkpoint, asked.rules, decisions=asked.decisions
        ),
        "difference": {"text": "\n".join(call.service.authoring.difference(call.actor, bundle, asked.rules))},
    }


def value_of_adoption(call: ToolCall, asked: asked_of.ValueOfAdoption) -> Any:
    """Return the tasks of a checkpoint, or start an analysis or return its state or result."""
    if asked.task is None:
        return call.service.adoption.tasks(call.actor, asked.checkpoint)
    wanted = NewAdoptionAnalysis(task=asked.task)
    return call.service.adoption.start(call.actor, asked.checkpoint, wanted)


def outcomes_by_feature(call: ToolCall, asked: asked_of.OutcomesByFeature) -> Any:
    """Return the rate of positive outcomes by level of a feature, before and after a time."""
    sample = call.service.decisions.sample(
        call.actor, asked.checkpoint, DecisionFilter(), limit=asked.decisions
    )
    own = call.settings.checkpoints[asked.checkpoint]
    levelled = []
    for one in sample:
        try:
            levelled.append((one, one.level(asked.feature)))
        except KeyError:
            continue
    if sample and not levelled:
        raise InvalidError(
            f'feature: no decision has a feature "{asked.feature[:100]}"; `describe_bundle` '
            "lists those there are"
        )
    kind = "action" if levelled and levelled[0][0].record.action else "score"
    outcome = own.outcome_of(kind)
    times = sorted(one.record.decided_at_us for one, _ in levelled)
    middle = times[len(times) // 2] if times else 0
    split = middle if asked.split is None else round(asked.split.timestamp() * 1e6)
    (overall,) = _levels([(one, "all") for one, _ in levelled], outcome, split) if levelled else (None,)
    rows = _levels(levelled, outcome, split)
    return {
        "feature": asked.feature,
        "outcome": outcome,
        "decisions": len(levelled),
        "left_out": len(sample) - len(levelled),
        "begin": None if not times else datetime.fromtimestamp(times[0] / 1e6, UTC),
        "split": datetime.fromtimestamp(split / 1e6, UTC),
        "end": None if not times else datetime.fromtimestamp(times[-1] / 1e6, UTC),
        "overall": overall,
        "levels": rows,
        "words": "The intervals of the differences have 95 % together over all levels (Newcombe, "
        "Bonferroni). `shifted` is true where the interval does not contain 0. `explains` is the level's "
        "part of the whole difference.",
    }


def _levels(
    sample: Sequence[tuple[SampledDecision, str | float | bool | None]], outcome: str, split: int
) -> list[dict[str, Any]]:
    named = _named([level for _, level in sample])
    counts: dict[str, list[int]] = {}
    for (one, _), name in zip(sample, named, strict=True):
        row = counts.setdefault(name, [0, 0, 0, 0, 0, 0])
        late = 3 * (one.record.decided_at_us >= split)
        row[late] += 1
        if outcome in one.outcomes:
            row[late + 1] += 1
            row[late + 2] += one.outcomes[outcome] > 0
    shown = sorted(counts.items(), key=lambda item: -(item[1][0] + item[1][3]))[:_LEVELS]
    confidence = 1 - (1 - _CONFIDENCE) / max(1, len(shown))
    later = sum(count[4] for count in counts.values())
    rows = []
    for name, (before, known, positive, after, known_after, positive_after) in shown:
        bounds = independent_difference((positive_after, known_after), (positive, known), confidence)
        both = known and known_after
        change = positive_after / known_after - positive / known if both else None
        rows.append(
            {
                "level": name,
                "before": _side(before, known, positive),
                "after": _side(after, known_after, positive_after),
                "difference": change,
                "explains": None if change is None else change * known_after / later,
                "low": bounds.low if both else None,
                "high": bounds.high if both else None,
                "shifted": bool(both and (bounds.low > 0 or bounds.high < 0)),
            }
        )
    return sorted(
        rows, key=lambda row: (not row["shifted"], row["difference"] is None, row["difference"] or 0.0)
    )


def _side(decisions: int, known: int, positive: int) -> dict[str, Any]:
    bounds = wilson(positive, known, _CONFIDENCE) if known else None
    return {
        "decisions": decisions,
        "known": known,
        "positive": positive,
        "rate": positive / known if known else None,
        "low": None if bounds is None else bounds.low,
        "high": None if bounds is None else bounds.high,
    }


def _named(levels: Sequence[str | float | bool | None]) -> list[str]:
    """Return the name of the level of each value. Numbers fall into bands of equal counts."""
    numbers = sorted(one for one in levels if isinstance(one, float))
    edges = sorted({numbers[len(numbers) * at // _BANDS] for at in range(1, _BANDS)}) if numbers else []

    def name(level: str | float | bool | None) -> str:
        if level is None:
            return "(missing)"
        if not isinstance(level, float):
            return str(level)
        below = [edge for edge in edges if edge <= level]
        above = [edge for edge in edges if edge > level]
        if not below:
            return f"below {above[0]:g}" if above else "all"
        return f"{below[-1]:g} to below {above[0]:g}" if above else f"{below[-1]:g} and above"

    return [name(level) for level in levels]
