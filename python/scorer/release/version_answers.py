"""Results of the operations on versions: lists, timelines and comparisons.

Like answers.py, this module imports no part of the service layer, so that the SDK returns the same types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from scorer.figure import Figure
from scorer.release.answers import BundleInfo
from scorer.release.model import ChangeKind, ChangeRequest, ChangeState, GateResult, Outcome, Place


@dataclass(frozen=True, slots=True)
class VersionChange:
    """A change request of a version, in short."""

    id: str
    kind: ChangeKind
    state: ChangeState
    verdict: Outcome | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Version:
    """A bundle that was submitted, tested, released or live at a checkpoint."""

    bundle: BundleInfo
    place: Place
    first_at: datetime
    """When the checkpoint first had it in a lane or in a change request."""
    changes: tuple[VersionChange, ...]
    """Its change requests at the checkpoint that the caller may see, newest first; none is left out."""
    share: float = 0.0
    """Share of the answers that it gives now, 0 to 1."""
    release: int | None = None
    """Release number that its verified signature states; None: not signed, or no keys are trusted."""
    live_since: datetime | None = None
    """When it last became live; None: it never was."""
    live_until: datetime | None = None
    """When it last stopped being live; None: it is live, or never was."""
    live_seconds: float = 0.0
    """How long it has been live in total, in seconds."""
    verdict: Outcome | None = None
    """Verdict of its newest change request that has one."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers that training measured, by name, from its lineage."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Data, code and hyperparameters of training, by name, from its lineage."""
    run_url: str = ""
    """Address of its training run in MLflow; empty: its lineage names no run, or no server is set."""
    report: str | None = None
    """Change request of its last final report; None: it has none."""
    rows: int | None = None
    """Observations of that report."""
    p99_us: float | None = None
    """99th percentile of its execution time in that report, in microseconds."""


@dataclass(frozen=True, slots=True)
class VersionList:
    """The versions of a checkpoint, or a part of them."""

    checkpoint: str
    items: tuple[Version, ...]
    total: int
    """How many versions fit the filter; `items` may be a part of them."""
    hidden: int
    """How many more belong to projects of which the caller is no member; they are not listed."""
    metrics: tuple[str, ...]
    """Names of metrics by which the list can be sorted, the main ones first."""
    next: int | None = None
    """Value of `offset` for the next part; None: this is the last."""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One version in a timeline."""

    version: Version
    value: float | None
    """Its metric; None: its lineage has no such number."""
    changed: Mapping[str, str]
    """Parameters that differ from the previous version, with the previous value."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The versions of a checkpoint in the order in which they came, with one metric."""

    checkpoint: str
    metric: str
    """Name of the metric; empty: no version has any."""
    by: str
    """Parameter whose values the chart tells apart; empty: none."""
    metrics: tuple[str, ...]
    """Metrics to choose from."""
    parameters: tuple[str, ...]
    """Parameters that differ between at least two versions."""
    entries: tuple[TimelineEntry, ...]
    """Oldest first."""
    omitted: int
    """How many older versions are left out, because a timeline has at most 500."""
    figure: Figure | None
    """None: no version has the metric."""


@dataclass(frozen=True, slots=True)
class PropertyDifference:
    """One property of two bundles."""

    group: str
    """`metrics`, `parameters`, `schema`, `thresholds`, `calibration`, `program`, `policy`, `rules` or
    `size`."""
    name: str
    left: float | str | None
    """None: the left bundle does not have it."""
    right: float | str | None
    """None: the right bundle does not have it."""
    change: str
    """`same`, `added` (only on the right), `removed` (only on the left) or `changed`."""


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One side of a comparison."""

    reference: str
    """As it was asked for."""
    bundle: BundleInfo
    change: ChangeRequest | None
    """The change request whose report is compared; None: the bundle has no report."""
    rows: int
    """Observations of that report; 0: there is none."""
    run_url: str = ""
    """Address of its training run in MLflow; empty: unknown."""


@dataclass(frozen=True, slots=True)
class SwapSet:
    """Decisions that one bundle flags and the other does not. Flagged is whatever is not in the lowest band.

    Of action bundles, the likeliest actions are compared, and nothing is flagged.
    """

    words: str
    """What was compared, in one sentence."""
    decisions: int
    """Decisions that both bundles made."""
    differing: int
    """Of these, how many the two decide differently."""
    left_only: int | None
    """How many the left bundle flags and the right one does not; None: of action bundles."""
    right_only: int | None
    both: int | None
    neither: int | None
    matrix: tuple[tuple[str, str, int], ...]
    """Decision of the left bundle, decision of the right bundle, and how many there are."""


@dataclass(frozen=True, slots=True)
class GatePair:
    """One gate in the reports of both sides."""

    metric: str
    left: GateResult | None
    right: GateResult | None


@dataclass(frozen=True, slots=True)
class BundleComparison:
    """Two bundles, or two change requests, side by side."""

    left: ComparedSide
    right: ComparedSide
    differences: tuple[PropertyDifference, ...]
    figures: tuple[Figure, ...]
    swaps: SwapSet | None
    gates: tuple[GatePair, ...]
    notes: tuple[str, ...]
    """What could not be compared and why, one sentence each."""
