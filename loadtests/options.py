"""The options that groups receive, and the list of groups."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loadtests.figures import ROOT

# The peers' environment, and what is made once: trained models, compiled programs.
WORK: Final = ROOT / ".build/bench"
PEERS_PYTHON: Final = WORK / "venv/bin/python"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to measure.

    Attributes:
        quick: Measure what `make bench-quick` judges, in a few minutes.
        smoke: Run every part for a moment only; the figures mean nothing.
        thorough: Search rates with longer and more windows at a finer resolution, and take more rounds.
        only: Keys of the figures wanted; empty: all.
        decisions: How many decisions the policies draw.
        seconds: Length of each load case; None: the case's own.
        demo: Output folder of the demo, whose bundles serve the load cases.
    """

    quick: bool = False
    smoke: bool = False
    thorough: bool = False
    only: frozenset[str] = field(default_factory=frozenset)
    decisions: int = 10_000_000
    seconds: float | None = 12.0
    demo: Path = ROOT / "demo-output"

    def wants(self, key: str) -> bool:
        """Return whether a figure of this key is to be measured."""
        return not self.only or key in self.only

    def wants_any(self, prefix: str) -> bool:
        """Return whether a figure is to be measured whose key begins with the prefix."""
        return not self.only or any(key.startswith(prefix) for key in self.only)


@dataclass(frozen=True)
class Group:
    """Figures that are measured together: a module ``loadtests.<name>`` with ``run(figures, options)``.

    Attributes:
        about: One line for `--help`.
        peers: Whether it runs in the environment of requirements/bench.txt (the peers, and serving's).
        quick: Whether `make bench-quick` judges figures of it.
    """

    name: str
    about: str
    peers: bool = False
    quick: bool = False

    @property
    def module(self) -> str:
        """The module that holds ``run``."""
        return f"loadtests.{self.name}"


# Groups that need a quiet machine come first.
_GROUPS: Final = (
    Group("engine", "forests and actions beside XGBoost, ONNX Runtime and others", peers=True, quick=True),
    Group("wire", "the server beside other servers: rates, latencies, a held GIL", quick=True),
    Group("identity", "what TLS, certificates and grants cost: rates and medians beside plaintext"),
    Group("sla", "overload: goodput, callers, batches, slow models, cancelled requests", quick=True),
    Group("swaps", "bundles swapped under load", quick=True),
    Group("observe", "what observe lanes cost those who are answered, one of them stuck included"),
    Group("cases", "every load case on the demo's server"),
    Group("admission", "what admission costs; thousands of seeds of it in simulated time"),
    Group("policy", "policy invariants over millions of decisions"),
)


def groups() -> dict[str, Group]:
    """Return the groups by name."""
    return {group.name: group for group in _GROUPS if importlib.util.find_spec(group.module)}
