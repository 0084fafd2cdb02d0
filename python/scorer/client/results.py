"""Results of the client's calls: plain, immutable, typed."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Served:
    """Who answered, and how.

    Attributes:
        bundle: "sha256:<hex>" of the bundle that answered; "" for the client's fallback.
        lane: Name of the lane that the request fell into.
        lane_table: Version of the server's lane table.
        fallback_source: "" where the model answered; "client" for this client's own
            fallback; otherwise the server's name for its source.
        fallback_reason: Why the model did not answer, one word; "" where it did.
        data_load_us: Microseconds spent on obtaining features.
        exec_us: Microseconds spent on evaluating the bundle.
    """

    bundle: str = ""
    lane: str = ""
    lane_table: int = 0
    fallback_source: str = ""
    fallback_reason: str = ""
    data_load_us: int = 0
    exec_us: int = 0

    @property
    def by_model(self) -> bool:
        """Whether the model answered and no fallback did."""
        return not self.fallback_source


@dataclass(frozen=True, slots=True)
class Score:
    """The answer to `score()`.

    Attributes:
        request_id: What the request carried (made by the client if the caller gave none).
        decision_id: What to report outcomes against. "" if the client's own fallback
            answered: the server's log may hold another decision for this request, or
            none, so nothing can be joined to this answer.
        score: Calibrated probability.
        margin: The forest's raw output; NaN for the client's fallback.
        decision: Label of the threshold band, such as "approve".
        served: Who answered.
        logged: Whether the decision is recorded as the checkpoint's durability demands.
        decision_token: Proves an outcome of the decision to any replica, at most 120 bytes; keep it with the
            payment. Empty if the server signs none.
    """

    request_id: str
    decision_id: str
    score: float
    margin: float
    decision: str
    served: Served
    logged: bool = False
    decision_token: bytes = b""


@dataclass(frozen=True, slots=True)
class BatchScore:
    """The answer to `score_batch()`; entry i belongs to row i.

    Attributes:
        request_id: What the request carried; row i is the decision "<request_id>/<i>".
        scores: Calibrated probabilities.
        margins: Raw outputs; NaN for the client's fallback.
        decisions: Labels of the threshold bands.
        served: Who answered; one bundle for all rows.
        unlogged: Rows that are not recorded as the checkpoint's durability demands; all of them for the
            client's fallback.
        decision_token: Proves outcomes of every row; see `Score`.
    """

    request_id: str
    scores: tuple[float, ...]
    margins: tuple[float, ...]
    decisions: tuple[str, ...]
    served: Served
    unlogged: int = 0
    decision_token: bytes = b""

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.scores)

    def decision_id(self, row: int) -> str:
        """The id to report outcomes of one row against; "" for the client's fallback."""
        if not 0 <= row < len(self.scores):
            raise IndexError(f"row {row} is not one of {len(self.scores)}")
        return "" if self.served.fallback_source == "client" else f"{self.request_id}/{row}"


@dataclass(frozen=True, slots=True)
class SelectedAction:
    """The answer to `select_action()`.

    Attributes:
        request_id: What the request carried (made by the client if the caller gave none).
        decision_id: What to report outcomes against; "" for the client's own fallback
            (see `Score`).
        action: Id of the chosen action.
        action_index: Its place in the catalogue; -1 where it is not known (fallback).
        propensity: Probability with which the policy chose it.
        expected_reward: The oracle's P(reward | context, action); NaN for the client's fallback.
        factors: The action's factors, such as {"three_ds": "frictionless"}.
        pmf: Probability of every action in catalogue order; empty unless asked for.
        logged: Whether the decision is recorded as the checkpoint's durability demands.
        replayed: Whether this repeats an earlier answer to the same request id.
        served: Who answered.
        decision_token: Proves an outcome of the decision; see `Score`.
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


@dataclass(frozen=True, slots=True)
class OutcomeAck:
    """The answer to `report_outcome()`.

    Attributes:
        duplicate: The same outcome was reported before.
        decision_known: This server remembers the decision. False is no error: another
            replica may have made it, or it is long ago; the join happens on the log.
        superseded: A higher revision was already recorded.
        proven: The outcome is proven, by its decision's token or because this server knows the decision. By
            default an unproven one is used neither for training nor by gates.
    """

    duplicate: bool
    decision_known: bool
    superseded: bool
    proven: bool = False


class Health(enum.StrEnum):
    """Answers of the standard gRPC health service."""

    UNKNOWN = "UNKNOWN"
    SERVING = "SERVING"
    NOT_SERVING = "NOT_SERVING"
    SERVICE_UNKNOWN = "SERVICE_UNKNOWN"


@dataclass(frozen=True, slots=True)
class FeatureInfo:
    """One feature of a checkpoint's request schema.

    Attributes:
        name: Its name.
        type: "number", "category" or "flag".
        categories: The dictionary; a category's code is its index in here.
        missing: "allow" or "refuse".
        unknown_category: "refuse" or "missing".
        minimum: Smallest allowed value, if there is one.
        maximum: Largest allowed value, if there is one.
    """

    name: str
    type: str
    categories: tuple[str, ...] = ()
    missing: str = "allow"
    unknown_category: str = "refuse"
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True, slots=True)
class ActionInfo:
    """One action of a checkpoint's catalogue."""

    id: str
    factors: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LaneInfo:
    """One lane and its share of the traffic, 0 to 1."""

    name: str
    bundle: str
    share: float


@dataclass(frozen=True, slots=True)
class ThresholdInfo:
    """A score at or above `start` has the label, up to the next band's start."""

    start: float
    label: str


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What a checkpoint serves now.

    Attributes:
        checkpoint: Its name.
        kind: "score" or "action".
        bundle: "sha256:<hex>" of the first lane's bundle.
        bundle_name: That bundle's name.
        lane_table: Version of the server's lane table.
        lanes: All lanes that answer.
        fingerprint: Of the schema; dense values travel with it.
        features: The schema in the order of dense values.
        actions: The catalogue in the order of eligibility masks; empty for "score".
        thresholds: The bands of a "score" checkpoint, lowest first.
        policy: How actions are chosen, in words.
        sla_p99_ms: The checkpoint's SLA in milliseconds.
        max_batch_rows: Most rows that one `score_batch()` may carry.
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

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names in the order of dense values."""
        return tuple(feature.name for feature in self.features)
