"""The lineage of a bundle as flat names with values: numbers are metrics, other values are parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_MOST = 200
_LONGEST = 200
_OTHERS = ("metrics", "importance", "revision_notes")
_RUN = re.compile(r"[0-9a-f]{32}")
MAIN = ("auc", "average_precision", "log_loss", "brier", "calibration", "reward")
"""Metrics that are listed first, by the last part of their names."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Metrics and parameters of one bundle."""

    metrics: Mapping[str, float]
    parameters: Mapping[str, str]
    run_id: str


NOTHING = Facts({}, {}, "")


def read(lineage: Mapping[str, Any]) -> Facts:
    """Return the metrics and parameters of a lineage, at most 200 of each.

    Args:
        lineage: The section `lineage` of a manifest. Nested names are joined by dots; the names of
            `parameters` are used as they are.
    """
    metrics = lineage.get("metrics")
    numbers = {
        name: float(value)
        for name, value in _flat(metrics if isinstance(metrics, Mapping) else {})
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    own = lineage.get("parameters")
    rest = {name: value for name, value in lineage.items() if name not in (*_OTHERS, "parameters")}
    parameters = dict(_flat(rest))
    parameters |= dict(_flat(own if isinstance(own, Mapping) else {}))
    run = lineage.get("run_id")
    return Facts(
        dict(list(numbers.items())[:_MOST]),
        {name: _text(value) for name, value in list(parameters.items())[:_MOST]},
        run if isinstance(run, str) else "",
    )


def ordered(names: Mapping[str, int]) -> tuple[str, ...]:
    """Return names of metrics, the main ones first, then those of most versions.

    Args:
        names: By name, in how many versions it occurs.
    """

    def key(name: str) -> tuple[int, int, str]:
        last = name.rpartition(".")[2].lower()
        return (MAIN.index(last) if last in MAIN else len(MAIN), -names[name], name)

    return tuple(sorted(names, key=key))


def run_url(base: str | None, run_id: str) -> str:
    """Return the address of a training run's page in MLflow; empty if it is unknown.

    MLflow gives runs 32 hexadecimal digits; anything else names a run of another system.

    Args:
        base: Address of the MLflow server; None: there is none.
        run_id: The run that a lineage names.
    """
    return f"{base.rstrip('/')}/#/runs/{run_id}" if base and _RUN.fullmatch(run_id) else ""


def _flat(values: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and depth < 6:
            yield from _flat(value, f"{name}.", depth + 1)
        elif not isinstance(value, list | tuple):
            yield name, value
        elif len(value) <= 20:
            yield name, ", ".join(str(one) for one in value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
