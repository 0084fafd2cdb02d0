"""Results of the calls: those of the service layer, and what REST adds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from scorer.bundle.rule_costs import PartCost, RuleCosts
from scorer.figure import Figure
from scorer.release.adoption_answers import (
    AdoptionAnalysis,
    AdoptionCheck,
    AdoptionResult,
    AdoptionTasks,
    AdoptionTaskView,
)
from scorer.release.agent_answers import AgentAccess, AgentCall, AgentTool, AgentToolResult
from scorer.release.answers import (
    BuildInfo,
    BundleDetail,
    BundleInfo,
    CalendarPage,
    ChangeDetail,
    Channel,
    CheckpointAdded,
    CheckpointMetrics,
    CheckpointView,
    DecisionPage,
    Delivery,
    Free,
    MemberView,
    MetricsChoices,
    Outlook,
    ProjectMember,
    Readout,
    ReleaseMark,
    Remark,
    Review,
    SegmentReport,
    SegmentResult,
    SegmentValue,
    ServerInfo,
    Slot,
    Step,
    Token,
    Tried,
    User,
    Verified,
)
from scorer.release.card_answers import BundleExplanation, CardApproval, CardReport, ModelCard
from scorer.release.drift_answers import (
    CheckpointDrift,
    DriftAlertView,
    DriftHistory,
    DriftLane,
    DriftPerformance,
    DriftQuantity,
    DriftSegment,
)
from scorer.release.model import ChangeEvent, ChangeState
from scorer.release.review_answers import CaseEvent, ReviewCase, ReviewCaseDetail
from scorer.release.rule_answers import (
    BenchRow,
    CaseReport,
    CaseRun,
    CheckedRule,
    RuleBench,
    RuleCheck,
    RuleDocument,
    RuledSide,
    RuleName,
    RuleProblem,
    RuleRecord,
    RuleRevision,
    RulesOverTime,
    SavedRules,
    TableCell,
    TableGrid,
)
from scorer.release.version_answers import (
    BundleComparison,
    ComparedSide,
    GatePair,
    PropertyDifference,
    SwapSet,
    Timeline,
    TimelineEntry,
    Version,
    VersionChange,
    VersionList,
)
from scorer.release.weekly_answers import (
    BestVersion,
    ComparedMetric,
    ComparedPair,
    ComparedValues,
    ComparedVersion,
    ComparedWeek,
    WeeklyComparison,
    WeeklyResult,
)

__all__ = [
    "AdoptionAnalysis",
    "AdoptionCheck",
    "AdoptionResult",
    "AdoptionTaskView",
    "AdoptionTasks",
    "AgentAccess",
    "AgentCall",
    "AgentTool",
    "AgentToolResult",
    "BenchRow",
    "BestVersion",
    "BuildInfo",
    "BundleComparison",
    "BundleDetail",
    "BundleExplanation",
    "BundleInfo",
    "CalendarPage",
    "CardApproval",
    "CardReport",
    "CaseEvent",
    "CaseReport",
    "CaseRun",
    "ChangeDetail",
    "Channel",
    "CheckedRule",
    "CheckpointAdded",
    "CheckpointDrift",
    "CheckpointMetrics",
    "CheckpointView",
    "ComparedMetric",
    "ComparedPair",
    "ComparedSide",
    "ComparedValues",
    "ComparedVersion",
    "ComparedWeek",
    "DecisionPage",
    "Delivery",
    "DriftAlertView",
    "DriftHistory",
    "DriftLane",
    "DriftPerformance",
    "DriftQuantity",
    "DriftSegment",
    "Events",
    "Figure",
    "Free",
    "GatePair",
    "IssuedToken",
    "MemberView",
    "MetricsChoices",
    "ModelCard",
    "Outlook",
    "PartCost",
    "PlatformHealth",
    "ProjectMember",
    "PropertyDifference",
    "Readout",
    "ReleaseMark",
    "Remark",
    "ResultPage",
    "Review",
    "ReviewCase",
    "ReviewCaseDetail",
    "RolledBack",
    "RuleBench",
    "RuleCheck",
    "RuleCosts",
    "RuleDocument",
    "RuleName",
    "RuleProblem",
    "RuleRecord",
    "RuleRevision",
    "RuledSide",
    "RulesOverTime",
    "SavedRules",
    "SegmentReport",
    "SegmentResult",
    "SegmentValue",
    "ServerInfo",
    "Slot",
    "Step",
    "SwapSet",
    "TableCell",
    "TableGrid",
    "Timeline",
    "TimelineEntry",
    "Token",
    "Tried",
    "User",
    "Verified",
    "Version",
    "VersionChange",
    "VersionList",
    "WeeklyComparison",
    "WeeklyResult",
]

T = TypeVar("T")


@dataclass(frozen=True)
class ResultPage(Generic[T]):
    """A page of a list."""

    items: list[T]
    next: str | None = None
    """Cursor of the next page; None: this is the last."""


@dataclass(frozen=True, slots=True)
class PlatformHealth:
    """The platform answers, and its database does."""

    status: str
    version: str
    leads: bool


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """The token and, this once, its secret."""

    token: Token
    secret: str


@dataclass(frozen=True, slots=True)
class RolledBack:
    """When a checkpoint was rolled back last."""

    checkpoint: str
    at: datetime | None


@dataclass(frozen=True, slots=True)
class Events:
    """What happened to a change since an event."""

    items: tuple[ChangeEvent, ...]
    state: ChangeState
    is_final: bool
    next: int
