"""Arguments of the tools. Descriptions are part of what an agent reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from scorer.release.fields import Line, LongText, Minutes, Moment, Name, Reference, Text, Version, Whole
from scorer.release.model import ChangeKind, ChangeState, Stage
from scorer.release.requests import RuleTextField

ChangeId = Annotated[str, Field(pattern=r"^cr-[0-9]{6,18}$", examples=["cr-000017"])]
DecisionId = Annotated[Line, Field(min_length=1)]
FeatureName = Annotated[str, Field(min_length=1, max_length=200)]
FeatureValues = Annotated[
    Mapping[FeatureName, float | bool | Annotated[str, Field(max_length=1000)] | None], Field(max_length=5000)
]


class ToolArguments(BaseModel):
    """Base of the arguments of all tools: fields that are not documented are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class NoArguments(ToolArguments):
    """Arguments of a tool that takes none."""


class OfCheckpoint(ToolArguments):
    """A tool that concerns one checkpoint."""

    checkpoint: Name = Field(examples=["fraud.checkout"])
    """Name of the checkpoint, as `list_checkpoints` returns it."""


class OfBundle(ToolArguments):
    """A tool that concerns one bundle."""

    bundle: Reference
    """A digest, at least four digits of one, or name@alias."""


class ListBundles(ToolArguments):
    """Filters and number of the bundles to list."""

    project: Name | None = None
    """Name of the project; null: all."""
    text: Line | None = None
    """Part of the name or digest; null: all."""
    limit: Annotated[Whole, Field(ge=1, le=100)] = 20


class ListVersions(OfCheckpoint):
    """Checkpoint and number of the versions to list."""

    limit: Annotated[Whole, Field(ge=1, le=100)] = 20


class CompareVersions(ToolArguments):
    """Two bundles or change requests to compare."""

    left: Annotated[Line, Field(min_length=1)]
    """A bundle or the id of a change request."""
    right: Annotated[Line, Field(min_length=1)]
    """The other side, of the same kind of bundle."""


class CompareOverTime(OfCheckpoint):
    """Versions to compare week by week."""

    versions: Annotated[list[Reference], Field(min_length=1, max_length=12)]
    """Bundles, from the oldest to the newest."""
    weeks: Annotated[Whole, Field(ge=1, le=104)] | None = None
    """Number of weeks; null: as in the settings."""


class ScoreWhatIf(OfCheckpoint):
    """A payment that does not exist."""

    features: FeatureValues
    """Values by feature: numbers, booleans, texts; null or absent: missing."""
    bundle: Reference | None = None
    """The bundle to evaluate; null: the one that answers now."""
    explain: bool = True
    """Whether to add the contributions of the features."""


class FindDecisions(OfCheckpoint):
    """Which recorded decisions to list."""

    lane: Line | None = None
    decision: Line | None = None
    """Label of a score, or action."""
    low: float | None = None
    """Smallest score, or expected reward of an action."""
    high: float | None = None
    """Largest score, or expected reward of an action."""
    begin: Moment | None = None
    """Time from which on the decision was made."""
    end: Moment | None = None
    """Time before which the decision was made."""
    outcome: Literal["known", "positive", "negative", "unknown"] | None = None
    """Whether an outcome of the decision was reported, and whether its value is above 0."""
    limit: Annotated[Whole, Field(ge=1, le=100)] = 20


class ExplainDecision(ToolArguments):
    """Id of the recorded decision to explain."""

    decision_id: DecisionId
    """Id of the decision, as `find_decisions` returns it."""
    checkpoint: Name | None = None
    """Name of the checkpoint; null: any."""


class OutcomesByFeature(OfCheckpoint):
    """A feature whose levels are compared."""

    feature: FeatureName
    """Name of a feature, such as issuer. Numbers are split into five bands."""
    split: Moment | None = None
    """Time that separates the decisions before from those after; null: the middle of the decisions."""
    decisions: Annotated[Whole, Field(ge=10, le=5000)] = 2000
    """Number of the newest decisions."""


class ListChanges(ToolArguments):
    """Which change requests to list."""

    project: Name | None = None
    """Name of the project; null: all."""
    checkpoint: Name | None = None
    """Name of the checkpoint; null: all."""
    state: ChangeState | None = None
    """State; null: all."""
    limit: Annotated[Whole, Field(ge=1, le=100)] = 20


class ReadReport(ToolArguments):
    """Id of the change request to report on."""

    change: ChangeId
    """Id of the change request, as `list_changes` returns it."""


class LiveMetrics(OfCheckpoint):
    """Which metrics over time to return."""

    window: Literal["1h", "6h", "24h", "7d", "30d"] = "24h"
    """Length of time, up to now."""
    points: Annotated[Whole, Field(ge=1, le=200)] = 24
    """Number of the newest points of each figure."""


class BacktestRules(OfCheckpoint):
    """Edited rules to evaluate on recorded decisions."""

    bundle: Reference | None = None
    """Bundle whose rules are edited; null: the one that answers now."""
    rules: RuleTextField
    """The TOML text of all rules in place of those of the bundle, which `describe_bundle` returns."""
    decisions: Annotated[Whole, Field(ge=1, le=5000)] = 1000
    """Number of the newest decisions to decide again."""


class ValueOfAdoption(OfCheckpoint):
    """An analysis of what adoption is worth."""

    task: Line | None = None
    """Name of the task in the settings of the checkpoint; null: list the tasks."""


class ReadCalendar(ToolArguments):
    """Which days of the calendar to return."""

    checkpoint: Name | None = None
    """Name of the checkpoint; null: all."""
    days: Annotated[Whole, Field(ge=1, le=60)] = 14
    """Number of days from now on."""


class AgentFinding(ToolArguments):
    """One piece of evidence with its source and figures."""

    tool: Line
    """Tool that returned it."""
    finding: Annotated[Text, Field(min_length=1, max_length=4000)]
    """What it shows, in plain text."""
    figures: Mapping[Annotated[str, Field(max_length=100)], float | None] = Field(default={}, max_length=50)
    """Numbers by name."""


class DraftFields(ToolArguments):
    """The contents of a draft."""

    checkpoint: Name = Field(examples=["fraud.checkout"])
    bundle: Reference
    """The bundle to test or to release."""
    title: Annotated[Line, Field(min_length=1, examples=["Deeper trees"])]
    """Title shown in lists."""
    kind: Literal[ChangeKind.TEST, ChangeKind.RELEASE] = ChangeKind.TEST
    """`test` observes a bundle without letting it answer. `release` follows a passed test."""
    description: Text = ""
    """Reason for the change, in plain text."""
    minutes: Minutes = 60.0
    """Length of the observation, in minutes."""
    stages: Annotated[tuple[Stage, ...], Field(max_length=20)] = ()
    """Canary stages of a release; empty: those of the checkpoint."""
    findings: Annotated[list[AgentFinding], Field(max_length=20)] = Field(default=[])
    """Evidence, which reviewers see with the draft."""
    proposed_rules: Annotated[LongText, Field(max_length=30_000)] = ""
    """TOML text of rules that a modeler may save as a revision of the bundle; empty: none."""

    def evidence(self) -> dict[str, Any] | None:
        """Return the findings and the proposed rules as the evidence of a draft; None: there are none."""
        found: dict[str, Any] = {}
        if self.findings:
            found["findings"] = [one.model_dump(mode="json") for one in self.findings]
        if self.proposed_rules:
            found["proposed_rules"] = self.proposed_rules
        return found or None


class DraftChange(DraftFields):
    """Contents and project of a draft to create."""

    project: Name = Field(examples=["fraud"])
    key: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")] | None = None
    """Idempotency key. A repeated call with the same key and contents returns the first draft."""


class EditDraft(DraftFields):
    """A draft of the same agent to replace."""

    change: ChangeId
    version: Version
    """Version that was read; the edit is rejected if the draft has changed since."""
