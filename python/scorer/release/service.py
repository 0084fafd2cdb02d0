"""The service layer: every operation of the platform.

Pages, REST, the command line and the pipeline call these operations. Each operation takes the actor as its
first argument, checks permissions, writes its audit entry and notifications in the same transaction, and
returns plain values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scorer.release.states import CONTROLS, DISCUSSION

if TYPE_CHECKING:
    from scorer.release.access import Access
    from scorer.release.additions import Additions
    from scorer.release.adoption.service import AdoptionAnalyses
    from scorer.release.agents import AgentTools
    from scorer.release.audit import Audit
    from scorer.release.authoring import RuleAuthoring, RuleHistories
    from scorer.release.builds import Builds
    from scorer.release.bundles import Bundles
    from scorer.release.calendar import Calendar
    from scorer.release.cards.card import Cards
    from scorer.release.cards.documents import Documents
    from scorer.release.changes import Changes
    from scorer.release.changes.control import Control
    from scorer.release.changes.discussion import Discussion
    from scorer.release.checkpoints import Checkpoints
    from scorer.release.decisions import Decisions
    from scorer.release.drift import DriftWatch
    from scorer.release.model import ChangeRequest
    from scorer.release.notify import Notifications
    from scorer.release.permissions import Permissions
    from scorer.release.readout import Readouts
    from scorer.release.reviews import Reviews
    from scorer.release.timeseries import MetricsOverTime
    from scorer.release.trying import Trying
    from scorer.release.versions import Comparisons, Versions
    from scorer.release.weekly.service import WeeklyComparisons


@dataclass(frozen=True)
class Service:
    """The groups of operations, which share one database and one fleet."""

    access: Access
    agents: AgentTools
    additions: Additions
    adoption: AdoptionAnalyses
    audit: Audit
    authoring: RuleAuthoring
    builds: Builds
    bundles: Bundles
    checkpoints: Checkpoints
    calendar: Calendar
    cards: Cards
    changes: Changes
    decisions: Decisions
    documents: Documents
    drift: DriftWatch
    metrics: MetricsOverTime
    notifications: Notifications
    permissions: Permissions
    readouts: Readouts
    reviews: Reviews
    rule_histories: RuleHistories
    versions: Versions
    weekly: WeeklyComparisons
    comparisons: Comparisons
    trying: Trying
    control: Control
    discussion: Discussion

    def __post_init__(self) -> None:
        # Tools call the other operations.
        self.agents.use(self)

    def operation(self, name: str) -> Callable[..., ChangeRequest]:
        """Return the method of an operation on a change request (`requests.OPERATIONS`)."""
        group: object = self.changes
        if name in CONTROLS:
            group = self.control
        elif name in DISCUSSION:
            group = self.discussion
        method: Callable[..., ChangeRequest] = getattr(group, name)
        return method
