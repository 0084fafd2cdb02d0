"""What the groups are given, and which groups there are."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loadtests.figures import ROOT

# Where `make bench` keeps the peers' environment, and what is made once: trained models, compiled peers.
WORK: Final = ROOT / ".build/bench"
PEERS_PYTHON: Final = WORK / "venv/bin/python"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to measure.

    Attributes:
        quick: Leave out whatever does not fit into five minutes.
        only: Keys of the figures wanted; empty: all.
        decisions: How many the policies draw.
        seconds: Length of each load case; None: its own.
        demo: Output folder of the demo, whose bundles serve the load cases.
    """

    quick: bool = False
    only: frozenset[str] = field(default_factory=frozenset)
    decisions: int = 10_000_000
    seconds: float | None = 12.0
    demo: Path = ROOT / "demo-output"

    def wants(self, key: str) -> bool:
        """Whether a figure of this key is to be measured."""
        return not self.only or key in self.only

    def wants_any(self, prefix: str) -> bool:
        """Whether a figure is to be measured whose key begins like this."""
        return not self.only or any(key.startswith(prefix) for key in self.only)


@dataclass(frozen=True)
class Group:
    """Figures that are measured together: a module ``loadtests.<name>`` with ``run(figures, options)``.

    Attributes:
        about: One line for `--help`.
        peers: It runs in the environment of requirements/bench.txt: the peers, and what serving needs.
        quick: It has figures for `make bench-quick`.
    """

    name: str
    about: str
    peers: bool = False
    quick: bool = False

    @property
    def module(self) -> str:
        """Where ``run`` is."""
        return f"loadtests.{self.name}"


# In this order: what needs a quiet machine first.
_GROUPS: Final = (
    Group("engine", "forests and actions beside XGBoost, ONNX Runtime and others", peers=True, quick=True),
    Group("wire", "the server beside other servers: rates, latencies, a held GIL"),
    Group("sla", "overload: goodput, callers, batches, slow models, cancelled requests"),
    Group("swaps", "bundles swapped under load"),
    Group("observe", "what observe lanes cost those who are answered, one of them stuck included"),
    Group("cases", "every load case on the demo's server"),
    Group("admission", "what admission costs; thousands of seeds of it in simulated time"),
    Group("policy", "policy invariants over millions of decisions"),
)


def groups() -> dict[str, Group]:
    """By name, those whose module is there."""
    return {group.name: group for group in _GROUPS if importlib.util.find_spec(group.module)}
