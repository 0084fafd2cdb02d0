"""Building a report from evidence: summary, figures, examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np

from scorer.figure import Figure
from scorer.release.answers import Readout, SegmentReport
from scorer.release.gates import counting
from scorer.release.gates.evidence import Observed, ShadowEvidence
from scorer.release.gates.metrics import hours_of_week
from scorer.release.model import GateResult, Outcome
from scorer.release.readout.figures import choices, coverage, scores, times
from scorer.release.readout.figures import segments as segment_figure
from scorer.release.readout.segments import segment_report
from scorer.stats import distances
from scorer.stats.quantiles import quantile

_EXAMPLES = 50
_QUANTILES = (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))


@dataclass(frozen=True, slots=True)
class ReportSubject:
    """The change, bundle and period that a report is about."""

    change: str
    checkpoint: str
    bundle: str
    live_bundle: str
    start: datetime
    end: datetime


def build(
    about: ReportSubject,
    evidence: ShadowEvidence,
    gates: Sequence[GateResult],
    *,
    verdict: Outcome | None = None,
    is_final: bool = False,
    segments: SegmentReport | None = None,
) -> Readout:
    """Everything that pages show of a change's time in the shadow."""
    drawn = figures(evidence)
    if segments is not None:
        drawn = (*drawn, segment_figure.draw(segments))
    return Readout(
        change=about.change,
        checkpoint=about.checkpoint,
        bundle=about.bundle,
        live_bundle=about.live_bundle,
        start=about.start,
        end=about.end,
        rows=len(evidence.shadow),
        is_final=is_final,
        verdict=verdict,
        gates=tuple(gates),
        summary=summary(evidence),
        figures=drawn,
        examples=examples(evidence),
        segments=segments,
    )


_COMMON_FIRST: Mapping[str, Callable[[ShadowEvidence], Figure]] = {
    "execution": times.execution,
    "data-load": times.data_load,
    "latency": times.latency,
}
_OF_SCORES: Mapping[str, Callable[[ShadowEvidence], Figure]] = {
    "scores": scores.histogram,
    "score-cdf": scores.cdf,
    "score-score": scores.against,
}
_OF_ACTIONS: Mapping[str, Callable[[ShadowEvidence], Figure]] = {
    "actions": choices.shares,
    "rewards": choices.rewards,
    "propensities": choices.propensities,
}
_COMMON_LAST: Mapping[str, Callable[[ShadowEvidence], Figure]] = {
    "flips": choices.flips,
    "drops": coverage.drops,
    "coverage": coverage.coverage,
}


def _drawn_by(kind: str) -> dict[str, Callable[[ShadowEvidence], Figure]]:
    """Return the functions that draw the figures of a kind of bundle, by name, in the order of a page."""
    return {**_COMMON_FIRST, **(_OF_ACTIONS if kind == "action" else _OF_SCORES), **_COMMON_LAST}


def figure_names(evidence: ShadowEvidence) -> list[str]:
    """The names of the figures that there are, in the order of a page."""
    own = [segment_figure.NAME] if evidence.shadow.segment_features else []
    return [*_drawn_by(evidence.kind), *own]


def figure(evidence: ShadowEvidence, name: str) -> Figure:
    """Draw one figure; its name is one of `figure_names`."""
    if name == segment_figure.NAME and (report := segment_report(evidence)) is not None:
        return segment_figure.draw(report)
    drawn = _drawn_by(evidence.kind)[name](evidence)
    return drawn if len(evidence.shadow) else replace(drawn, words="Nothing has been observed yet.")


def figures(evidence: ShadowEvidence) -> tuple[Figure, ...]:
    """All figures of all rows, in the order of a page."""
    return tuple(figure(evidence, name) for name in _drawn_by(evidence.kind))


def summary(evidence: ShadowEvidence) -> dict[str, Any]:
    """Return the most important numbers as JSON values; None for numbers that are not known."""
    shadow, control = evidence.shadow, evidence.control
    good = shadow.take(shadow.error == 0)
    both = shadow.take(shadow.comparable)
    read = counting.observations(evidence)
    found: dict[str, Any] = {
        "rows": len(shadow),
        "counts": counting.account(evidence.counters, read).as_dict(),
        "sources": {name: one.as_dict() for name, one in counting.by_source(evidence.counters, read).items()},
        "control_rows": len(control),
        "sla_us": evidence.sla_us,
        "execution": {
            "live": _times(shadow.live_exec_us),
            "shadow": _times(good.exec_us),
            "control": _times(control.exec_us[control.error == 0]),
        },
        "data_load": {
            "live": _times(shadow.live_load_us),
            "shadow": _times(good.load_us),
            "control": _times(control.load_us[control.error == 0]),
        },
        "lag": _times(shadow.lag_us),
        "errors": _by_name(shadow, "error", shadow.error),
        "live_fallbacks": int((shadow.live_fallback > 0).sum()),
        "features_absent": int((shadow.absent > 0).sum()),
        "features_compared": int((shadow.differs >= 0).sum()),
        "features_different": int((shadow.differs > 0).sum()),
        "flips": _share(both.flipped),
        "control_flips": _share(control.flipped[control.comparable]),
        "apart": {
            name: {
                "psi": _plain(distances.psi(one.first, one.second)),
                "kl": _plain(distances.kl(one.second, one.first)),
                "js": _plain(distances.js(one.first, one.second)),
                "bins": len(one.first),
            }
            for name, one in scores.compared(evidence).items()
        },
        "covered_hours": len(np.unique(hours_of_week(shadow.at))),
        "counters": counting.totals(evidence.counters) if evidence.counters else None,
        "stuck": _stuck(evidence),
        "servers": _by_name(shadow, "server", shadow.server),
        "parity": None
        if evidence.parity is None
        else dict(zip(("rows", "max"), evidence.parity, strict=True)),
        "notes": list(evidence.notes),
    }
    if evidence.kind == "score":
        names = shadow.labels()
        approve = names.index(evidence.approve) if evidence.approve in names else -1
        found["approve"] = {
            "live": _share(both.live_label == approve),
            "shadow": _share(both.label == approve),
        }
        found["decisions"] = _decisions(both, approve)
    else:
        found["distance"] = _plain(float(np.mean(both.distance))) if len(both) else None
        found["expected_reward"] = {
            "live": _plain(float(np.mean(both.live_score))) if len(both) else None,
            "shadow": _plain(float(np.mean(both.score))) if len(both) else None,
        }
    return found


def _decisions(both: Observed, approve: int) -> dict[str, Any]:
    """Return decisions by label of the live bundle and of the candidate, and the overlap of flagged ones.

    A decision is flagged if it is not approved. If few decisions are flagged, the rates of all decisions do
    not show that a candidate approves the requests that the live bundle flags; the overlap does.
    """
    names = both.labels()
    live, own = both.live_label, both.label
    flagged = live != approve
    return {
        "live": {name: int((live == code).sum()) for code, name in enumerate(names) if name},
        "shadow": {name: int((own == code).sum()) for code, name in enumerate(names) if name},
        "flagged_live": int(flagged.sum()),
        "flagged_shadow": int((own != approve).sum()),
        "flagged_both": int((flagged & (own != approve)).sum()),
    }


def examples(evidence: ShadowEvidence) -> list[dict[str, Any]]:
    """Return decisions whose labels differ, those with the largest difference of scores first."""
    ordered = sorted(
        evidence.flips, key=lambda flip: (-abs(flip.score - flip.live_score), flip.at, flip.decision)
    )
    return [
        {
            "decision": flip.decision,
            "at": times.moment(flip.at),
            "live": flip.live_label,
            "shadow": flip.label,
            "live_score": flip.live_score,
            "score": flip.score,
            "features": [{"name": n, "live": live, "shadow": own} for n, live, own in flip.features],
        }
        for flip in ordered[:_EXAMPLES]
    ]


def _times(values: Any) -> dict[str, float | None]:
    return {name: _plain(quantile(values, q)) for name, q in _QUANTILES}


def _by_name(rows: Observed, column: str, codes: Any) -> dict[str, int]:
    names = rows.names.get(column, ())
    found, counts = np.unique(codes[codes > 0], return_counts=True)
    return {names[int(code)]: int(count) for code, count in zip(found, counts, strict=True)}


def _share(mask: Any) -> float | None:
    return float(mask.mean()) if len(mask) else None


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _stuck(evidence: ShadowEvidence) -> list[str]:
    """Return the servers whose last reading has an evaluation of the lane that does not end."""
    last = {one.server: one for one in sorted(evidence.counters, key=lambda one: one.at)}
    return sorted(server for server, one in last.items() if one.stuck)
