"""Sentences that describe the results of gates."""

from __future__ import annotations

import math

from scorer.release.gates.grammar import Gate
from scorer.release.gates.measured import Measured

_SAID = {
    "<=": "at most",
    "<": "below",
    ">=": "at least",
    ">": "above",
    "==": "exactly",
    "!=": "not equal to",
}


def number(value: float, unit: str) -> str:
    """Format a value with its unit."""
    if not math.isfinite(value):
        return "unbounded"
    if unit == "time":
        return f"{value:,.0f} µs" if abs(value) < 1e4 else f"{value / 1e3:,.3g} ms"
    if unit == "share":
        return f"{100 * value:.3g} %"
    return f"{value:.4g}"


def compare(gate: Gate, limit: float) -> str:
    """Describe the limit of a gate."""
    said = _SAID[gate.success.comparison]
    within = "between ±" if gate.success.absolute else f"{said} "
    asked = f"{within}{number(limit, gate.names.unit)}"
    return f"{asked} (the SLA)" if gate.success.limit.of_sla and gate.success.limit.number == 1 else asked


def say(gate: Gate, found: Measured, limit: float, bounds: tuple[float, float], why: str) -> str:
    """Describe a result: value, bounds, rows, limit, and the reason if it is inconclusive."""
    unit = gate.names.unit
    against = {"live": " against live", "reference": " against the reference"}.get(gate.against, "")
    less = " beyond the A/A control's" if gate.spec.minus else ""
    parts = [f"{gate.names.title}{against}{less} is {number(found.value, unit)}"]
    if gate.success.side:
        low, high = bounds
        sure = f"{100 * gate.success.confidence:g} %"
        if gate.success.absolute:
            parts.append(f", between {number(low, unit)} and {number(high, unit)} ({sure} each)")
        elif gate.success.side == "upper":
            parts.append(f", at most {number(high, unit)} ({sure} confidence)" if math.isfinite(high) else "")
        else:
            parts.append(f", at least {number(low, unit)} ({sure} confidence)" if math.isfinite(low) else "")
    of = "request" if gate.spec.metric == "drop_rate" else "row"
    parts.append(f", over {found.rows:,} {of}{'' if found.rows == 1 else 's'}")
    parts.append(f"; required: {compare(gate, limit)}")
    if why:
        parts.append(f": {why}")
    sentence = "".join(parts) + "."
    return f"{sentence} ({found.remark[0].upper()}{found.remark[1:]}.)" if found.remark else sentence
