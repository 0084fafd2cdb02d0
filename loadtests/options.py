"""Options of groups, and the list of groups."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loadtests.figures import ROOT

# Directory of the peers' environment, trained models and compiled programs.
WORK: Final = ROOT / ".build/bench"
PEERS_PYTHON: Final = WORK / "venv/bin/python"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a run.

    Attributes:
        quick: Measure the figures of `make bench-quick`, in a few minutes.
        smoke: Run every part only for a moment; the figures are not valid.
        thorough: Search rates with longer and more windows at a finer resolution, with more rounds.
        only: Keys of the figures to measure; empty: all.
        decisions: Number of decisions of the policies.
        seconds: Length of each load case; None: the case's own.
        demo: Output directory of the demo, whose bundles serve the load cases.
    """

    quick: bool = False
    smoke: bool = False
    thorough: bool = False
    only: frozenset[str] = field(default_factory=frozenset)
    decisions: int = 10_000_000
    seconds: float | None = 12.0
    demo: Path = ROOT / "demo-output"

    def wants(self, key: str) -> bool:
        """Whether to measure the figure with this key."""
        return not self.only or key in self.only

    def wants_any(self, prefix: str) -> bool:
        """Whether to measure a figure whose key begins with the prefix."""
        return not self.only or any(key.startswith(prefix) for key in self.only)


@dataclass(frozen=True)
class Group:
    """Figures that are measured together: a module ``loadtests.<name>`` with ``run(figures, options)``.

    Attributes:
        about: One line for `--help`.
        peers: Whether it runs in the environment of requirements/bench.txt (peers and serving packages).
        quick: Whether `make bench-quick` has figures of it.
    """

    name: str
    about: str
    peers: bool = False
    quick: bool = False

    @property
    def module(self) -> str:
        """Name of the module with ``run``."""
        return f"loadtests.{self.name}"


# Groups that need an idle machine come first.
_GROUPS: Final = (
    Group(
        "engine",
        "forests and actions, compared with XGBoost, ONNX Runtime and others",
        peers=True,
        quick=True,
    ),
    Group("wire", "the server, compared with other servers: rates, latencies, a held GIL", quick=True),
    Group("footprint", "processor time per request, and a sidecar's processor time and memory"),
    Group("identity", "cost of TLS, certificates and grants: rates and medians, compared with plaintext"),
    Group("sla", "overload: goodput, callers, batches, slow models, cancelled requests", quick=True),
    Group("swaps", "swaps of bundles under load", quick=True),
    Group("observe", "cost of observe lanes for answered requests, also with a stuck lane"),
    Group("tracing", "cost of traces of 1 % of the requests, also with a collector that never answers"),
    Group("cases", "every load case on the demo's server"),
    Group("admission", "cost of admission control, and thousands of seeds in simulated time"),
    Group("policy", "policy invariants over millions of decisions"),
)


def groups() -> dict[str, Group]:
    """Return the groups by name."""
    return {group.name: group for group in _GROUPS if importlib.util.find_spec(group.module)}
