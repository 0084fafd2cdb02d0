"""Results of the client's calls, as immutable dataclasses."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from scorer.client.errors import ClientError


@dataclass(frozen=True, slots=True)
class Served:
    """The bundle and lane that answered a request, or the fallback and its reason.

    Attributes:
        bundle: Digest "sha256:<hex>" of the bundle that answered; "" for the client's fallback.
        lane: Name of the lane that the request was assigned to.
        lane_table: Version of the server's lane table.
        fallback_source: "" if the model answered, "client" for the client's fallback, otherwise the server's
            name of its source.
        fallback_reason: One word for the reason why the model did not answer; "" if it did.
        data_load_us: Time for obtaining features, in microseconds.
        exec_us: Time for evaluating the bundle, in microseconds.
        features_defaulted: Why features that the server computes have their defaults: "no_key", "late" or
            "failed"; "" if none has for one of these reasons.
        faulted_functions: Names of the functions of the bundle that had no result, in a step or in a
            condition of a rule. In a batch: in at least one row; in a selection: for at least one eligible
            action.
    """

    bundle: str = ""
    lane: str = ""
    lane_table: int = 0
    fallback_source: str = ""
    fallback_reason: str = ""
    data_load_us: int = 0
    exec_us: int = 0
    features_defaulted: str = ""
    faulted_functions: tuple[str, ...] = ()

    @property
    def by_model(self) -> bool:
        """Whether the model answered and no fallback did."""
        return not self.fallback_source


@dataclass(frozen=True, slots=True)
class ScoreReason:
    """A feature that contributes to a score.

    Attributes:
        code: Code of the feature in the bundle's dictionary; its name if it has no entry.
        feature: Name of the feature of the request or of the action.
        contribution: Amount by which the feature moves the margin, such as log-odds. With an answer it is a
            path attribution, which approximates the feature's share; in an explanation it is exact.
    """

    code: str
    feature: str
    contribution: float

    @property
    def raises(self) -> bool:
        """Whether the feature raises the score; otherwise it lowers the score."""
        return self.contribution > 0


@dataclass(frozen=True, slots=True)
class FiredRule:
    """A rule of the bundle that had an effect.

    Attributes:
        id: Id of the rule. A row of a decision table has the table's id and a number, such as "limits.row2".
        reason: Reason code that the rule writes; may be empty.
        source: Regulation or agreement that the rule follows; may be empty.
    """

    id: str
    reason: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class AppliedRules:
    """What the rules of the bundle did.

    Attributes:
        fired: The rules that had an effect, in the order of the bundle's rule set.
        score: The score within the caps and floors of the rules. The decision is that of a rule, or else of
            this score's band. 0 for an action.
        queue: The review queue; empty if no rule selects one.
        unknown: Number of rules that did not fire because a value is missing.
        errors: Number of rules that did not fire because their condition has no value.
        conflicts: Number of groups whose rules contradicted each other and had no effect.
    """

    fired: tuple[FiredRule, ...] = ()
    score: float = 0.0
    queue: str = ""
    unknown: int = 0
    errors: int = 0
    conflicts: int = 0


@dataclass(frozen=True, slots=True)
class MarginExplanation:
    """A margin as the sum of a baseline and the contribution of each feature.

    Attributes:
        action: Id of the explained action; "" for a score and for a difference of two actions.
        baseline: Expectation of the margin over the training rows.
        margin: The explained margin, such as log-odds.
        score: The score that comes from the margin. Of a difference: the difference of the scores.
        contributions: Exact contribution of each feature of the request and of the action, by name.
        reasons: The features that contribute most, the largest contribution first.
    """

    action: str
    baseline: float
    margin: float
    score: float
    contributions: Mapping[str, float]
    reasons: tuple[ScoreReason, ...] = ()


@dataclass(frozen=True, slots=True)
class RowExplanation:
    """The answer to `explain()`.

    Attributes:
        bundle: Digest "sha256:<hex>" of the explained bundle.
        explanation: That of the score, or of the action.
        against: That of the other action; None if the call names none.
        difference: `explanation` minus `against`; None if the call names no other action.
        exec_us: Time of the computation, in microseconds.
        faulted_functions: Functions of the bundle that had no result, so that the explained row had a
            missing value.
    """

    bundle: str
    explanation: MarginExplanation
    against: MarginExplanation | None = None
    difference: MarginExplanation | None = None
    exec_us: int = 0
    faulted_functions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Score:
    """The answer to `score()`.

    Attributes:
        request_id: Id of the request, drawn by the client if the caller gave none.
        decision_id: Id to report outcomes with. It is "" if the client's fallback answered: the server's log
            has another decision for this request, or none, so no outcome can be joined to this answer.
        score: Calibrated probability.
        margin: The forest's raw output; NaN for the client's fallback.
        decision: Label of the threshold band, such as "approve".
        served: The bundle and lane that answered.
        logged: Whether the decision is recorded with the durability that the checkpoint requires.
        decision_token: Token that proves an outcome of the decision to any replica, at most 120 bytes. Store
            it with the payment. Empty if the server signs no tokens.
        reasons: The features that contribute most, the largest contribution first; fewer than were asked for,
            or none, if the bundle gives no reasons, a fallback answered, or the server is under pressure.
        rules: What the bundle's rules did; None if the bundle has no rules. They change `decision` and never
            `score`.
    """

    request_id: str
    decision_id: str
    score: float
    margin: float
    decision: str
    served: Served
    logged: bool = False
    decision_token: bytes = b""
    reasons: tuple[ScoreReason, ...] = ()
    rules: AppliedRules | None = None


@dataclass(frozen=True, slots=True)
class BatchScore:
    """The answer to `score_batch()`; entry i belongs to row i.

    Attributes:
        request_id: Id of the request; row i is the decision "<request_id>/<i>".
        scores: Calibrated probabilities.
        margins: Raw outputs; NaN for the client's fallback.
        decisions: Labels of the threshold bands.
        served: The bundle and lane that answered all rows.
        unlogged: Number of rows that are not recorded with the durability that the checkpoint requires; all
            rows for the client's fallback.
        decision_token: Token that proves outcomes of every row; see `Score`.
        rules: What the bundle's rules did to each row; None if the bundle has no rules, or its server is of a
            version that does not return them.
        faulted_rows: Names of the functions of the bundle that had no result, by the position of the row.
    """

    request_id: str
    scores: tuple[float, ...]
    margins: tuple[float, ...]
    decisions: tuple[str, ...]
    served: Served
    unlogged: int = 0
    decision_token: bytes = b""
    rules: tuple[AppliedRules, ...] | None = None
    faulted_rows: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.scores)

    def decision_id(self, row: int) -> str:
        """Return the id to report outcomes of one row with; "" for the client's fallback.

        Raises:
            IndexError: There is no such row.
        """
        if not 0 <= row < len(self.scores):
            raise IndexError(f"row {row} is not one of {len(self.scores)}")
        return "" if self.served.fallback_source == "client" else f"{self.request_id}/{row}"


@dataclass(frozen=True, slots=True)
class SelectedAction:
    """The answer to `select_action()`.

    Attributes:
        request_id: Id of the request, drawn by the client if the caller gave none.
        decision_id: Id to report outcomes with; "" for the client's fallback (see `Score`).
        action: Id of the chosen action.
        action_index: Position of the action in the catalogue; -1 if it is not known (client's fallback).
        propensity: Probability with which the policy chose the action.
        expected_reward: The oracle's P(reward | context, action); NaN for the client's fallback.
        factors: The action's factors, such as {"three_ds": "frictionless"}.
        pmf: Probability of every action in catalogue order; empty unless `include_pmf` was set.
        logged: Whether the decision is recorded with the durability that the checkpoint requires.
        replayed: Whether this repeats an earlier answer to the same request id.
        served: The bundle and lane that answered.
        decision_token: Token that proves an outcome of the decision; see `Score`.
        reasons: The features of the context and of the action that contribute most to the action's expected
            reward; see `Score`.
        rules: What the bundle's rules did; None if the bundle has no rules. The action was drawn among those
            that the request and the rules allow.
    """

    request_id: str
    decision_id: str
    action: str
    action_index: int
    propensity: float
    expected_reward: float
    factors: Mapping[str, str]
    pmf: tuple[float, ...]
    logged: bool
    replayed: bool
    served: Served
    decision_token: bytes = b""
    reasons: tuple[ScoreReason, ...] = ()
    rules: AppliedRules | None = None


@dataclass(frozen=True, slots=True)
class PaymentDecision:
    """The answer to `decide()`: a score, and the action for the same payment.

    Attributes:
        score: The score, as of `score()`.
        action: The action, as of `select_action()`; None if none was chosen.
        no_action: Why there is no action: "declined" if the decision of the score is the strictest of its
            bundle, "failed" if neither the model nor a fallback could choose one, "" if there is an action.
        action_error: The error of the action if `no_action` is "failed". The score is valid and recorded.
        passed_features: Features of the action bundle that received the score or its decision.
    """

    score: Score
    action: SelectedAction | None
    no_action: str = ""
    action_error: ClientError | None = None
    passed_features: tuple[str, ...] = ()

    @property
    def decision_id(self) -> str:
        """Id of both decisions, each at its own checkpoint; "" for the client's fallback."""
        return self.score.decision_id


@dataclass(frozen=True, slots=True)
class OutcomeAck:
    """The answer to `report_outcome()`.

    Attributes:
        duplicate: Whether the same outcome was reported before.
        decision_known: Whether this server has the decision in memory. False is not an error: another replica
            may have made the decision, or it is too old. Outcomes are joined to decisions from the log.
        superseded: Whether a higher revision was already recorded.
        proven: Whether the outcome is proven, by its decision's token or because this server knows the
            decision. By default an unproven outcome is used neither for training nor by gates.
    """

    duplicate: bool
    decision_known: bool
    superseded: bool
    proven: bool = False


class Health(enum.StrEnum):
    """Statuses of the standard gRPC health service."""

    UNKNOWN = "UNKNOWN"
    SERVING = "SERVING"
    NOT_SERVING = "NOT_SERVING"
    SERVICE_UNKNOWN = "SERVICE_UNKNOWN"


@dataclass(frozen=True, slots=True)
class FeatureInfo:
    """One feature of a checkpoint's request schema.

    Attributes:
        name: Name of the feature.
        type: "number", "category" or "flag".
        categories: Levels of a category; the code of a level is its index.
        missing: Whether the feature may be missing: "allow" or "refuse".
        unknown_category: Treatment of a level that is not listed: "refuse", or "missing" for a missing value.
        minimum: Smallest allowed value; None if there is no limit.
        maximum: Largest allowed value; None if there is no limit.
        computed: Name of the feature of the bundle's feature set that gives the value if a request does not
            state it; "" if requests state it.
    """

    name: str
    type: str
    categories: tuple[str, ...] = ()
    missing: str = "allow"
    unknown_category: str = "refuse"
    minimum: float | None = None
    maximum: float | None = None
    computed: str = ""


@dataclass(frozen=True, slots=True)
class ActionInfo:
    """One action of a checkpoint's catalogue."""

    id: str
    factors: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LaneInfo:
    """One lane, the digest of its bundle and its share of the requests, 0 to 1."""

    name: str
    bundle: str
    share: float


@dataclass(frozen=True, slots=True)
class ThresholdInfo:
    """A band of scores: those from `start` up to the next band's start have the label."""

    start: float
    label: str


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node of a bundle's program, with its times on the server.

    Attributes:
        name: The slot that the node writes.
        kind: "forest", "calibrate", "rules", "policy" and so on.
        mean_us: Mean time of the measured evaluations in microseconds; 0 if there are none.
        timed: Number of measured evaluations in which the node ran. One decision in 61 is measured.
    """

    name: str
    kind: str
    mean_us: float
    timed: int


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What a checkpoint serves now.

    Attributes:
        checkpoint: Name of the checkpoint.
        kind: "score" or "action".
        bundle: Digest "sha256:<hex>" of the first lane's bundle.
        bundle_name: Name of that bundle.
        lane_table: Version of the server's lane table.
        lanes: All answer lanes.
        fingerprint: Fingerprint of the schema, which requests with dense values contain.
        features: The schema in the order of dense values.
        actions: The catalogue in the order of eligibility masks; empty for kind "score".
        thresholds: The bands of a checkpoint of kind "score", lowest first.
        policy: One-line description of the policy.
        sla_p99_ms: The checkpoint's SLA in milliseconds.
        max_batch_rows: Largest number of rows of one `score_batch()`.
        nodes: The nodes of that bundle's program in their order, with their times on the server; empty if the
            server states none.
        entities: Entities of the bundle's computed features, whose keys requests have in `keys`.
    """

    checkpoint: str
    kind: str
    bundle: str
    bundle_name: str
    lane_table: int
    lanes: tuple[LaneInfo, ...]
    fingerprint: int
    features: tuple[FeatureInfo, ...]
    actions: tuple[ActionInfo, ...]
    thresholds: tuple[ThresholdInfo, ...]
    policy: str
    sla_p99_ms: float
    max_batch_rows: int
    nodes: tuple[NodeInfo, ...] = ()
    entities: tuple[str, ...] = ()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features in the order of dense values."""
        return tuple(feature.name for feature in self.features)
