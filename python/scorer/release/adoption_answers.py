"""What the service layer returns about analyses of adoption."""

from __future__ import annotations

from dataclasses import dataclass

from scorer.causal.findings import CausalFinding
from scorer.causal.results import (
    AdoptionEffect,
    ChainedProduct,
    DoubtReason,
    HiddenBias,
    MonthDifference,
    PlaceboResult,
    VariableBalance,
)
from scorer.figure import Figure


@dataclass(frozen=True, slots=True)
class AdoptionTaskView:
    """An analysis that can be started."""

    name: str
    product: str
    """The product of its settings; empty: the only one of the table."""
    newest: str | None
    """Id of the newest analysis; null: there is none."""


@dataclass(frozen=True, slots=True)
class AdoptionTasks:
    """The analyses that can be started at a checkpoint."""

    items: tuple[AdoptionTaskView, ...]


@dataclass(frozen=True, slots=True)
class AdoptionCheck:
    """One check of an estimate."""

    name: str
    finding: str
    limit: str
    state: str
    """`passed` or `failed`."""


@dataclass(frozen=True, slots=True)
class AdoptionResult:
    """The result of an analysis of adoption."""

    product: str
    currency: str
    """Empty: unknown."""
    first_month: str
    last_month: str
    units: int
    controls: int
    """Units that never adopted."""
    verdict: str
    """`reliable` or `unreliable`."""
    reasons: tuple[DoubtReason, ...]
    """Why the estimate is unreliable."""
    effects: tuple[AdoptionEffect, ...]
    """All cohorts first, then each cohort, by horizon."""
    checks: tuple[AdoptionCheck, ...]
    balance: tuple[VariableBalance, ...]
    path: tuple[MonthDifference, ...]
    """Differences by month from adoption."""
    trend: PlaceboResult
    in_time: PlaceboResult | None
    in_space: PlaceboResult | None
    chains: tuple[ChainedProduct, ...]
    hidden_bias: tuple[HiddenBias, ...]
    findings: tuple[CausalFinding, ...]
    notes: tuple[str, ...]
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class AdoptionAnalysis:
    """An analysis of adoption: its state, and its result once it is done."""

    id: str
    checkpoint: str
    task: str
    state: str
    """`waiting`, `running`, `done` or `failed`."""
    step: str
    """What a running analysis does."""
    share: float
    """Share of the step that is done."""
    error: str
    """Why it has failed."""
    result: AdoptionResult | None
