"""Requests to the platform, which define the bodies of REST, the fields of forms and the SDK's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from scorer.config.fields import NAME
from scorer.release.answers import Draft
from scorer.release.errors import InvalidError
from scorer.release.fields import (
    FORM,
    PROJECT,
    Flag,
    Line,
    LongText,
    Minutes,
    Moment,
    Name,
    Names,
    Number,
    Patterns,
    Reason,
    Reference,
    Share,
    SlotNumber,
    Text,
    UserName,
    Version,
    Whole,
    split_names,
    violations,
)
from scorer.release.model import (
    CaseDecision,
    CaseDelivery,
    CaseReason,
    CaseState,
    ChangeKind,
    GateSpec,
    Quotas,
    Role,
    Severity,
)
from scorer.release.settings import check_filter

T = TypeVar("T")


def read_form(kind: type[T], values: Mapping[str, Any]) -> T:
    """Validate the text of a form.

    Args:
        kind: Class of the request, or `Draft`.
        values: Values by field, as text or converted by the page.

    Raises:
        InvalidError: A field is not valid. The error names the fields and their rules.
    """
    try:
        read: T = TypeAdapter(kind).validate_python(dict(values), context=FORM)
    except ValidationError as error:
        raise InvalidError(violations(error.errors(include_url=False))) from None
    return read


class Request(BaseModel):
    """Base of all requests: fields that are not documented are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


# --- change requests; Draft itself is in answers.py ---


@dataclass(frozen=True, slots=True)
class Edit(Draft):
    """A draft that replaces an earlier version of itself."""

    version: Version | None = None
    """Version of the draft that was read; REST takes it as If-Match as well."""


class Submit(Request):
    """Start and slot of the booking of a submitted change request."""

    start: Moment | None = None
    """Start of the booking, with its time zone; null: the next free slot."""
    slot: SlotNumber | None = None
    """Number of the slot; null: any."""


class NewWeekly(Request):
    """A comparison of versions over time."""

    versions: Annotated[list[Reference], BeforeValidator(split_names), Field(min_length=1, max_length=12)]
    """Bundles, from the oldest to the newest: digests, at least four digits of each, or name@alias."""
    weeks: Annotated[Whole, Field(ge=1, le=104)] | None = None
    """Number of weeks, of which the current one is the last; null: as in the settings."""


class NewAdoptionAnalysis(Request):
    """The start of an analysis of adoption."""

    task: Line
    """Name of the task in the settings of the checkpoint."""


class Rebook(Request):
    """New start, length and slot of a booking."""

    start: Moment
    """Start of the booking, with its time zone."""
    minutes: Minutes | None = None
    """Length of the booking in minutes; null: unchanged."""
    slot: SlotNumber | None = None
    """Number of the slot; null: unchanged."""


class Finish(Request):
    """The end of the observation before the end of its booking."""


class Approve(Request):
    """The approval of a RELEASE."""

    comment: Annotated[Text, Field(max_length=2000)] = ""
    """Recorded with the approval."""
    version: Version | None = None
    """Version of the change request that was reviewed; REST takes it as If-Match as well."""


class WithReason(Request):
    """An operation that is recorded with its reason."""

    reason: Reason


class OfVersion(WithReason):
    """An operation on the present stage of a release, recorded with its reason."""

    version: Version | None = None
    """Version of the change request that was read; REST takes it as If-Match as well."""


class Skip(OfVersion):
    """A stage that a release leaves out."""

    stage: Annotated[Whole, Field(ge=1, le=20)]
    """Number of a stage to come, from 1."""


class Comment(Request):
    """A comment on a change request. It cannot be edited or removed."""

    text: Annotated[Text, Field(min_length=1, max_length=2000)]
    """Plain text."""


class RequestReview(Request):
    """Approvers who are asked for a review."""

    reviewers: Annotated[list[UserName], BeforeValidator(split_names), Field(max_length=10)] = Field(
        default=[], examples=[["bo"]]
    )
    """Users in place of those who were asked before; empty: nobody."""


class Archive(Request):
    """Whether an ended change request is hidden from lists."""

    version: Version | None = None
    """Version of the change request that was read; REST takes it as If-Match as well."""


class Waive(WithReason):
    """The waiver of a gate for one change request."""

    metric: Line = Field(min_length=1, examples=["covered_hours_of_week"])
    """Metric of the gate."""


OPERATIONS: Mapping[str, type[Request]] = {
    "submit": Submit,
    "rebook": Rebook,
    "finish": Finish,
    "approve": Approve,
    "reject": WithReason,
    "waive": Waive,
    "withdraw": WithReason,
    "rollback": WithReason,
    "pause": OfVersion,
    "resume": OfVersion,
    "promote": OfVersion,
    "skip": Skip,
    "comment": Comment,
    "request_review": RequestReview,
    "archive": Archive,
    "unarchive": Archive,
}
"""Operations on a change request: `Service.operation` returns their methods, which take these fields."""


# --- decisions ---


class DecisionFilter(Request):
    """Conditions on decisions, all of which must hold."""

    lane: Line | None = None
    """Name of the lane."""
    decision: Line | None = None
    """Label of a score, or action."""
    entity: Line | None = None
    """Entity, as the log has it."""
    low: Number | None = None
    """Smallest score, or expected reward of an action."""
    high: Number | None = None
    """Largest score, or expected reward of an action."""
    begin: Moment | None = None
    """Time from which on the decision was made."""
    end: Moment | None = None
    """Time before which the decision was made."""
    outcome: Literal["known", "positive", "negative", "unknown"] | None = None
    """Whether an outcome of the decision was reported, and whether its value is above 0."""


# --- rules of bundles ---

RULE_TEXT: Final = 500_000
"""Largest number of characters of the rules that the platform edits."""
RuleTextField = Annotated[LongText, Field(max_length=RULE_TEXT)]
CaseTextField = Annotated[LongText, Field(max_length=200_000)]


class CheckRules(Request):
    """Rules to check against a bundle."""

    text: RuleTextField
    """The TOML text of the rules."""


class TestRules(CheckRules):
    """Rules to evaluate on the author's cases."""

    __test__: ClassVar[bool] = False

    cases: CaseTextField
    """The TOML text of the cases."""


class BenchRules(CheckRules):
    """Rules to evaluate on recorded decisions, or on one request."""

    decisions: Annotated[list[Annotated[Line, Field(min_length=1)]], Field(max_length=50)] = Field(default=[])
    """Ids of recorded decisions."""
    checkpoint: Name | None = None
    """Checkpoint of the decisions; null: any."""
    features: (
        Annotated[
            Mapping[
                Annotated[str, Field(max_length=200)],
                float | bool | Annotated[str, Field(max_length=1000)] | None,
            ],
            Field(max_length=5000),
        ]
        | None
    ) = None
    """Values by feature of one request; null: none. An absent feature is missing."""
    score: Share | None = None
    """The model's score of that request; null: the bundle computes it."""


class CostRules(Request):
    """Rules to measure, and the requests to measure them on."""

    text: RuleTextField | None = None
    """The TOML text of the rules; null: those of the bundle."""
    decisions: Annotated[list[Annotated[Line, Field(min_length=1)]], Field(max_length=50)] = Field(default=[])
    """Ids of recorded decisions; empty: the golden cases of the bundle."""
    checkpoint: Name | None = None
    """Checkpoint of the decisions; null: any."""


class SaveRules(CheckRules):
    """Edited rules to save as the next revision of a bundle, with a change request."""

    checkpoint: Name
    """Checkpoint of the change request."""
    note: Reason
    """What changes and why. It is recorded in the lineage of the bundle."""
    title: Line = ""
    """Title of the change request; empty: the first line of the note."""
    cases: CaseTextField = ""
    """The author's cases as TOML; all of them must pass."""
    minutes: Minutes = 60.0
    """Length of the observation, in minutes."""
    submit: Flag = True
    """Whether to submit the change request at once; false: it stays a draft."""
    over: Reference | None = None
    """Newer revision of the same bundle that this one replaces; without it, a newer one is a conflict."""


class SwitchRule(Request):
    """One rule to snooze, to retire or to enable."""

    to: Literal["snoozed", "retired", "enabled"]
    """`snoozed`: without effect until a time; `retired`: without effect; `enabled`: undoes both."""
    until: Moment | None = None
    """End of the snooze."""
    checkpoint: Name
    """Checkpoint of the change request."""
    reason: Reason
    minutes: Minutes = 60.0
    """Length of the observation, in minutes."""
    submit: Flag = True
    """Whether to submit the change request at once; false: it stays a draft."""


# --- review queue ---


class CaseFilter(Request):
    """Which cases of the review queue to list. Omitted fields match everything."""

    project: Name | None = None
    """Name of the project."""
    checkpoint: Name | None = None
    """Name of the checkpoint."""
    state: CaseState | None = None
    """State: open, decided or closed."""
    assignee: UserName | None = None
    """User who has claimed it."""
    unassigned: Flag = False
    """Whether to list only cases that nobody has claimed."""
    overdue: Flag = False
    """Whether to list only cases that are open and late."""
    delivery: CaseDelivery | None = None
    """Whether a server has recorded the outcome."""
    code: Line | None = None
    """A reason code of the answer."""
    queue: Line | None = None
    """The queue that the answer's rules select."""
    decision_id: Line | None = None
    """Id of the decision."""
    low: Number | None = None
    """Smallest score."""
    high: Number | None = None
    """Largest score."""
    amount_low: Number | None = None
    """Smallest amount."""
    amount_high: Number | None = None
    """Largest amount."""
    begin: Moment | None = None
    """Time from which on the decision was made."""
    end: Moment | None = None
    """Time before which the decision was made."""


class CaseVersion(Request):
    """An operation on a case of the review queue."""

    version: Version | None = None
    """Version of the case that was read; the operation is rejected if it has changed. Null: any."""


class AssignCase(CaseVersion):
    """The assignment of a case to a user."""

    user: UserName
    """A user whose role allows the review."""


class DecideCase(CaseVersion):
    """A reviewer's decision on a case, or its correction."""

    decision: CaseDecision
    """approve or decline."""
    reason: Line = Field(min_length=1, examples=["confirmed_fraud"])
    """Code of one of the project's reasons."""
    notes: Annotated[Text, Field(max_length=2000)] = ""
    """Plain text for other reviewers. It must not contain card numbers."""
    decision_token: Annotated[str, Field(max_length=400, pattern=r"^[A-Za-z0-9+/_-]+={0,2}$")] | None = None
    """Token of the decision's response in base64, which proves the outcome at any server; null: none."""


class SetReasons(Request):
    """The reasons that reviewers of a project can give."""

    reasons: Annotated[list[CaseReason], Field(max_length=50)]
    """Reasons in the order in which they are shown; empty: the standard reasons."""


# --- checkpoints and calendar ---


class Sampling(Request):
    """Sampling of the requests that observe lanes evaluate."""

    sample: Share
    """Share of the requests, above 0 and at most 1."""
    filter: Annotated[str, Field(max_length=10_000), AfterValidator(check_filter)] = ""
    """JSON list of conditions on features, all of which must hold; empty: every request."""
    pool: Flag | None = None
    """Whether the shadow pool evaluates; null: unchanged."""


class Try(Request):
    """One payment to score in the platform's own process."""

    features: Annotated[
        Mapping[
            Annotated[str, Field(max_length=200)],
            float | bool | Annotated[str, Field(max_length=1000)] | None,
        ],
        Field(max_length=5000),
    ]
    """Values by feature: numbers, booleans, texts; null or absent: missing."""
    bundle: Reference | None = None
    """A digest, at least four digits of one, or name@alias; null: the bundle that answers now."""


class NewFreeze(Request):
    """Recurring windows in which changes are forbidden (`deny`) or exclusively allowed (`allow`)."""

    name: Line = Field(min_length=1, examples=["weekend"])
    """Name shown on pages."""
    kind: Literal["deny", "allow"] = "deny"
    """`deny` forbids changes in the windows, `allow` forbids them outside; deny takes precedence."""
    cron: Line = Field(min_length=9, examples=["0 18 * * 5"])
    """Start of each window: minute, hour, day, month, weekday (0 and 7: Sunday)."""
    timezone: Line = Field(default="UTC", min_length=1, examples=["Europe/Stockholm"])
    """Time zone of the cron fields."""
    minutes: Annotated[Whole, Field(ge=1, le=44_640)]
    """Length of each window, in minutes."""
    checkpoints: Patterns = Field(default=["*"])
    """Shell-style patterns of checkpoint names."""
    reason: Line = ""
    """Reason shown to users."""


# --- servers and checkpoints beside those of platform.toml ---


class NewServer(Request):
    """A server to manage, beside those of platform.toml. It must answer before it is kept."""

    name: Name = Field(examples=["scorer-2"])
    """Name of the server on the platform."""
    control: Annotated[str, Field(min_length=3, max_length=300)] = Field(examples=["scorer-2:7701"])
    """Address of its control service, as host:port; certificates are those of [fleet_tls]."""
    role: Literal["live", "shadow"] = "live"
    """`live` answers requests; `shadow` is in the shadow pool."""
    log: Annotated[Line, Field(pattern=r"^(/.*)?$")] = ""
    """Absolute path of its decision log on the platform's machine; empty: the platform cannot read it."""


class NewCheckpoint(Request):
    """A checkpoint to manage, beside those of platform.toml."""

    name: Name = Field(examples=["fraud.refund"])
    """Name of the checkpoint, as the servers have it."""
    alias: Annotated[str, Field(pattern=rf"^{NAME}@{NAME}$")] = Field(examples=["fraud-refund@live"])
    """Registry alias that a release moves."""
    p99_ms: Annotated[Number, Field(gt=0, le=60_000)] = 10.0
    """SLA that gates compare times with, in milliseconds."""
    slots: SlotNumber = 2
    """Change requests that may be observed at the same time."""
    sample: Share = 0.1
    """Share of its requests that are observed, unless an owner sets another one."""
    filter: Annotated[str, Field(max_length=10_000), AfterValidator(check_filter)] = ""
    """JSON list of conditions on features, all of which must hold; empty: every request."""
    pool: Flag = False
    """Whether the shadow pool evaluates instead of the live servers."""
    minutes: Minutes = 60.0
    """Length of an observation in minutes, unless the change request sets another one."""
    gates: Annotated[list[GateSpec], Field(max_length=50)] = Field(default=[])
    """Gates that a change request must pass; empty: the standard gates."""


class ServeCheckpoint(Request):
    """A checkpoint to add to the servers that do not have it."""

    kind: Literal["score", "action"]
    """What it answers: one probability, or one action of many."""


# --- standing permissions ---


class NewPermission(WithReason):
    """Changes that a user may submit at a checkpoint without a person's approval, within limits."""

    kind: ChangeKind
    """`overlay`, `test` or `release`."""
    checkpoint: Name = Field(examples=["action.authorise"])
    """Name of the checkpoint."""
    user: UserName
    """A modeler of the project, usually a learning loop's own user."""
    days: Annotated[Number, Field(gt=0, le=366)]
    """Days until it expires; above 0, at most 366."""
    per_hour: Annotated[Whole, Field(ge=1, le=60)] = 12
    """Changes that may be submitted within an hour; 1 to 60."""
    max_shift: Annotated[Number, Field(gt=0, le=10)] = 1.0
    """Largest offset that an overlay may give an action, in log-odds."""


# --- bundles, notifications ---


class NewBuild(Request):
    """A bundle to build from a model file. The files themselves are sent beside these fields."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")] = Field(examples=["fraud-checkout"])
    """Name of the bundle; a checkpoint takes the name that its alias begins with."""
    version: Line = Field(min_length=1, examples=["2026-11-23"])
    """Version of the model, kept in the bundle's lineage."""
    checkpoint: Name | None = None
    """Checkpoint whose live bundle thresholds, labels, policy and actions are copied from; null: none."""
    schema_from: Literal["table", "example", "lines", "live"] = "table"
    """Where the schema comes from: the table, an example request, lines of text, or the live bundle."""
    features: Annotated[Text, Field(max_length=200_000)] = ""
    """Lines such as `amount number 0..5000` and `country category DE, FR`, for `lines`."""
    bands: Annotated[Text, Field(max_length=10_000)] = ""
    """Lines such as `0 approve` and `0.8 review`; empty: those of the live bundle."""
    calibration: Literal["none", "isotonic", "sigmoid"] = "none"
    """Map from the model's output to a probability, fitted on the table's label."""
    label: Line = ""
    """Column of the table with what came true, 0 or 1; it is no feature."""


class Adopt(Request):
    """A bundle that the registry already has."""

    bundle: Reference


class NewExplanation(Request):
    """A global explanation of a bundle."""

    document: Mapping[str, Any] = Field(
        description="The document that `scorer explain global` wrote, explanation.json."
    )


class CardText(Request):
    """What the author of a model says about it. An empty section is shown as not written."""

    purpose: Text = Field(default="", description="Intended use: which decisions, for which traffic.")
    not_for: Text = Field(default="", description="Uses that the model is not made for.")
    limits: Text = Field(default="", description="Known limits and failure modes.")
    data: Text = Field(default="", description="The training data: source, time span, selection, labels.")
    fairness: Text = Field(default="", description="Groups that were considered, and what was found.")
    contact: Text = Field(default="", description="Who answers questions about the model.")


class NewChannel(Request):
    """A receiver of a project's notifications."""

    url: str = Field(
        min_length=1, max_length=2000, pattern=r"^[!-~]+$", examples=["mailto://user:password@example.com"]
    )
    """An apprise URL, or `https://...` of a webhook."""
    severity: Severity = Severity.INFO
    """Events below this severity are not sent."""
    checkpoints: Names = Field(default=[])
    """Names of checkpoints whose events are sent; empty: all."""
    secret: Annotated[str, Field(min_length=8, max_length=500, pattern=r"^[\x20-~]+$")] | None = None
    """Signs a webhook's deliveries (HMAC-SHA256)."""


# --- tools of agents ---


class CallTool(Request):
    """A call of a tool."""

    arguments: Mapping[str, Any] = Field(examples=[{"checkpoint": "fraud.checkout"}])
    """Arguments, as the tool's schema has them."""
    client: Annotated[str, Field(max_length=200)] = ""
    """Name and version of the agent's program, recorded with the call; empty: unknown."""


class AllowTools(Request):
    """The tools that agents may use in a project."""

    tools: Annotated[
        list[Annotated[str, Field(pattern=r"^[a-z_]{1,64}$")]],
        BeforeValidator(split_names),
        Field(max_length=100),
    ] = Field(examples=[["list_checkpoints", "live_metrics"]])
    """Names of tools in place of those that are allowed now; empty: none."""


# --- projects, users, tokens ---


class QuotaChange(Request):
    """Limits of a project. Omitted limits stay unchanged."""

    open_changes: Annotated[Whole, Field(ge=0, le=1_000_000)] | None = None
    slot_minutes_per_week: Annotated[Whole, Field(ge=0, le=1_000_000)] | None = None
    bundles: Annotated[Whole, Field(ge=0, le=1_000_000)] | None = None

    def over(self, before: Quotas) -> Quotas:
        """Return `before` with the given limits replaced."""
        return replace(before, **self.model_dump(exclude_none=True))


class NewProject(Request):
    """Request to create a project."""

    name: Annotated[str, Field(pattern=PROJECT)] = Field(examples=["fraud"])
    """Up to 40 lower-case letters, digits and hyphens."""
    title: Line = Field(min_length=1, examples=["Fraud at the checkout"])
    """Title shown on pages."""
    quotas: QuotaChange | None = None
    """Any of open_changes, slot_minutes_per_week, bundles; omitted limits have their default."""
    checkpoints: Names = Field(default=[])
    """Names of the checkpoints that the project may change; empty: all."""


class ProjectChange(Request):
    """Fields of a project to change."""

    title: Annotated[Line, Field(min_length=1)] | None = None
    """Title shown on pages; null: unchanged."""
    quotas: QuotaChange | None = None
    """Limits to change; omitted limits stay unchanged."""
    checkpoints: Names | None = None
    """Names of the checkpoints that the project may change; null: unchanged; empty: all."""


class NewRole(Request):
    """Request to set the role of a member."""

    role: Role
    """viewer, agent, modeler, approver or owner."""


class NewToken(Request):
    """A token to create, which grants at most the permissions of its creator."""

    label: Line = Field(min_length=1, examples=["laptop"])
    """Description of where the token is used."""
    role: Role
    """Highest role that the token grants."""
    user: UserName | None = None
    """User of the token; null: the caller."""
    project: Name | None = None
    """Project that the token is restricted to; null: every project of its user."""
    expires_at: Moment | None = None
    """Time of its expiry, with its time zone; null: never."""


class NewUser(Request):
    """A user to add, or to restore after removal."""

    name: UserName
    """Letters, digits and . _ @ + -."""
    admin: Flag = False
    """Whether the user administers the platform."""


class AdminChange(Request):
    """Whether a user is an admin."""

    admin: Flag
    """Whether the user is an admin from now on."""
