"""Counters and gauges of a process in Prometheus' text format."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping

Labels = tuple[tuple[str, str], ...]
"""Names and values of the labels of a sample, in their order."""


class Exposition:
    """Counters and gauges with labels. Safe to use from any thread.

    Args:
        metrics: Type and description of each metric. The names of counters are without `_total`.
    """

    def __init__(self, metrics: Mapping[str, tuple[str, str]]) -> None:
        self._metrics = metrics
        self._values: dict[tuple[str, Labels], float] = defaultdict(float)
        self._lock = threading.Lock()

    def increase(self, name: str, labels: Labels, value: float) -> None:
        """Increase a metric by a number; by 0, to report it from now on."""
        with self._lock:
            self._values[name, labels] += value

    def put(self, name: str, labels: Labels, value: float) -> None:
        """Set a metric to a value."""
        with self._lock:
            self._values[name, labels] = value

    def get(self, name: str, labels: Labels) -> float:
        """Return the present value of a metric; 0 if it has none."""
        with self._lock:
            return self._values.get((name, labels), 0.0)

    def text(self) -> str:
        """Return all metrics in Prometheus' text format, version 0.0.4."""
        with self._lock:
            values = sorted(self._values.items())
        lines = []
        for name, (kind, about) in self._metrics.items():
            shown = f"{name}_total" if kind == "counter" else name
            lines += [f"# HELP {shown} {about}", f"# TYPE {shown} {kind}"]
            for (of, labels), value in values:
                if of == name:
                    written = ",".join(f'{label}="{given}"' for label, given in labels)
                    lines.append(f"{shown}{{{written}}} {value:.17g}")
        return "".join(f"{line}\n" for line in lines)
