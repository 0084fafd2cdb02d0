//! Rejections of requests. The server maps each to a status of its protocol.

use scorer_admission::{Shed, ShedReason};
use scorer_core::policy::MaskError;
use scorer_core::schema::SchemaError;
use scorer_token::TokenError;

/// The reason why one request is rejected. The message states the field, the rule and the remedy.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Rejection {
    // --- admission ---
    /// The caller's deadline had passed before the work began.
    #[error("the deadline passed before the request was evaluated; allow more time or send less load")]
    Deadline,
    /// The limit of requests in flight is reached.
    #[error("{limit} requests are in flight, the limit; retry with back-off or raise max_inflight")]
    Overloaded {
        /// The limit.
        limit: usize,
    },
    /// The peer's share of that limit is used up, or the connection's part of the peer's share.
    #[error(
        "{got} requests of this {of} are in flight, its share; retry with back-off, spread the load over more {of}s or raise max_inflight_per_peer"
    )]
    ShareUsed {
        /// Number of its requests in flight.
        got: usize,
        /// The owner of the share: "peer" or "connection".
        of: &'static str,
    },
    /// The request was shed, so that others can be answered in time.
    #[error("shed ({reason}): {rule}", reason = .reason.as_str(), rule = rule(*.reason))]
    Shed {
        /// The rule that applied.
        reason: ShedReason,
        /// Time in milliseconds after which a retry can succeed; `None` if retries cannot.
        retry_after_ms: Option<u64>,
    },
    /// The fallback has reached its exposure cap.
    #[error("the model cannot answer, and the fallback has reached its exposure cap; decide by other means")]
    Capped,
    /// The bundle's breaker is open, and there is no other source of an answer.
    #[error("bundle {bundle} is out of service after failing repeatedly; roll back or publish a working one")]
    BreakerOpen {
        /// The bundle's digest.
        bundle: String,
    },
    /// The rules of the bundle leave no action, and there is no fallback that the request allows.
    #[error(
        "eligible: the rules of bundle {bundle} leave none of these actions, and the checkpoint has no fallback among them; send more actions, correct the rules or configure a fallback"
    )]
    NothingAllowed {
        /// The bundle's digest.
        bundle: String,
    },
    /// The server is stopping.
    #[error("the server is stopping; retry on another replica")]
    Draining,

    // --- identify ---
    /// There is no such checkpoint.
    #[error("checkpoint {name:?} is not configured; this server has {known}")]
    UnknownCheckpoint {
        /// The requested name, shortened.
        name: String,
        /// The configured checkpoints.
        known: String,
    },
    /// The method is for the other kind of checkpoint.
    #[error("checkpoint {name:?} is of kind {kind}; call {method}")]
    WrongKind {
        /// The checkpoint.
        name: String,
        /// Its kind.
        kind: &'static str,
        /// The method for its kind.
        method: &'static str,
    },
    /// The idempotency key breaks its rule.
    #[error("{field}: {got}; use 1 to {max} printable ASCII characters")]
    Id {
        /// `request_id` or `decision_id`.
        field: &'static str,
        /// The fault. It does not contain the id, which may be any text.
        got: String,
        /// Greatest allowed length in bytes.
        max: usize,
    },
    /// Another field is too long.
    #[error("{field}: {bytes} bytes; at most {max} are allowed")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Length of the field in bytes.
        bytes: usize,
        /// The limit.
        max: usize,
    },

    /// A text or a number is a card number, which must not be stored.
    #[error("{field}: holds a card number; send a token or a keyed hash in its place")]
    CardNumber {
        /// The field. The message does not contain its value.
        field: &'static str,
    },
    /// The time of the outcome is out of range.
    #[error("occurred_at_ms is out of range; send milliseconds since 1970, or 0 if the time is not known")]
    OccurredAt,

    /// The request asks for more reasons than an answer may have.
    #[error("reasons: {asked} are asked for; an answer has at most {max}")]
    TooManyReasons {
        /// The number in the request.
        asked: u32,
        /// The limit.
        max: usize,
    },

    // --- features ---
    /// The request has too many keys.
    #[error(
        "keys: {got} are given; a request has at most {max}, send those of the entities that Describe lists"
    )]
    TooManyKeys {
        /// Number of keys.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// An entity of a batch does not have one key per row.
    #[error(
        "keys: {got} keys of an entity are given for {rows} rows; send one per row, empty if the row has none"
    )]
    KeysPerRow {
        /// Number of keys.
        got: usize,
        /// Number of rows.
        rows: u32,
    },
    /// No feature set is configured.
    #[error("this server has no feature sets; configure them in [features] sets")]
    NoFeatureSets,
    /// The state of features is not in this server.
    #[error("this server reads features from Redis; send events to the topic of its feed")]
    EventsElsewhere,
    /// The number of events is out of range.
    #[error("events: {got} are given; send 1 to {max} in one request")]
    EventCount {
        /// Number of events.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// The queue of the journal is full.
    #[error(
        "the journal of the feature store cannot keep up; repeat the request with the same events after a while"
    )]
    EventsBusy {
        /// Time in milliseconds after which a retry can succeed.
        retry_after_ms: u64,
    },
    /// The journal cannot be written.
    #[error(
        "the journal of the feature store cannot be written: {0}; repair its disk and repeat the request"
    )]
    Journal(String),
    /// Neither form of features is set.
    #[error("features: neither \"named\" nor \"dense\" is set; send one of them")]
    NoFeatures,
    /// The schema refuses a value.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The schema refuses a value in one row of a batch.
    #[error("row {row}: {error}")]
    Row {
        /// Number of the row, from 0.
        row: usize,
        /// The fault.
        error: SchemaError,
    },
    /// The caller built the vector for another schema than the bundle's.
    #[error(
        "schema_fingerprint {got:#018x} is not that of bundle {bundle}, {expected:#018x}; call Describe and build the vector again"
    )]
    Fingerprint {
        /// The fingerprint that was sent.
        got: u64,
        /// The fingerprint of the bundle's schema.
        expected: u64,
        /// The bundle's digest.
        bundle: String,
    },
    /// The batch has no rows.
    #[error("rows is 0; send at least one row")]
    NoRows,
    /// The batch has too many rows.
    #[error("rows is {rows}, the checkpoint takes at most {max}; split the batch")]
    TooManyRows {
        /// Number of rows sent.
        rows: u32,
        /// The checkpoint's limit.
        max: u32,
    },
    /// The number of values is not rows × features.
    #[error(
        "values: {got} values for {rows} rows of {features} features; send {rows} x {features}, row by row"
    )]
    Shape {
        /// Number of values sent.
        got: usize,
        /// Rows sent.
        rows: u32,
        /// Features of the schema.
        features: usize,
    },

    // --- two decisions ---
    /// One of the two decisions of a request cannot be made.
    #[error("{step}: {rejection}")]
    Step {
        /// `score` or `action`.
        step: &'static str,
        /// The reason.
        rejection: Box<Rejection>,
    },
    /// A step is not stated.
    #[error("{step}: it is not set; name the checkpoint of both steps")]
    NoStep {
        /// `score` or `action`.
        step: &'static str,
    },
    /// Neither bundle of the request reads a feature.
    #[error("features: neither bundle reads feature {feature:?}; correct the name or leave it out")]
    UnreadFeature {
        /// The feature, shortened.
        feature: String,
    },
    /// The feature that receives the result of the score has another type.
    #[error(
        "{field}: feature {feature:?} of bundle {bundle} is not a {expected}; name a feature of that type or leave the field empty"
    )]
    PassedType {
        /// `score_feature` or `decision_feature`.
        field: &'static str,
        /// The feature.
        feature: String,
        /// The bundle's digest.
        bundle: String,
        /// The type that it must have.
        expected: &'static str,
    },
    /// Both results of the score are for the same feature.
    #[error("decision_feature: feature {feature:?} is score_feature as well; name two features")]
    PassedTwice {
        /// The feature, shortened.
        feature: String,
    },
    /// The request states a value of a feature that receives the result of the score.
    #[error(
        "features: {feature:?} receives the result of the score; leave it out, or send NaN in a dense vector"
    )]
    PassedStated {
        /// The feature.
        feature: String,
    },
    /// The protocol cannot pass values on.
    #[error("features: {feature:?} cannot receive a value in this protocol; call scorer.v1 Decide")]
    NotPassed {
        /// The feature.
        feature: String,
    },

    // --- route ---
    /// The checkpoint has no lanes yet.
    #[error("checkpoint {name:?} has no bundle yet; publish one and point the checkpoint's alias at it")]
    NoBundle {
        /// The checkpoint.
        name: String,
    },

    // --- decide ---
    /// `eligible` is present and empty.
    #[error("eligible: present but empty; mark at least one action, or leave it out for every action")]
    NothingEligible,
    /// Both forms of the eligible set are present.
    #[error("eligible: both \"ids\" and \"mask\" are set; send one of them")]
    BothForms,
    /// No bit of the mask is set.
    #[error("eligible.mask: no action is eligible; set at least one bit")]
    EmptyMask,
    /// The mask is not valid for the catalogue.
    #[error(transparent)]
    Mask(#[from] MaskError),
    /// An id is not in the catalogue.
    #[error(
        "eligible.ids: action {id:?} is not in the catalogue of bundle {bundle}; call Describe for its {actions} actions"
    )]
    UnknownAction {
        /// The id that was sent, shortened.
        id: String,
        /// The bundle's digest.
        bundle: String,
        /// Size of the catalogue.
        actions: usize,
    },
    /// An id is listed twice.
    #[error("eligible.ids: action {id:?} is listed twice; list it once")]
    RepeatedAction {
        /// The action.
        id: String,
    },
    /// There are more ids than actions.
    #[error(
        "eligible.ids: {got} ids, the catalogue of bundle {bundle} has {actions} actions; list each at most once"
    )]
    TooManyActions {
        /// Ids sent.
        got: usize,
        /// Size of the catalogue.
        actions: usize,
        /// The bundle's digest.
        bundle: String,
    },
    /// The id was used for a request with other content.
    #[error(
        "request_id was used before at checkpoint {checkpoint:?} with other content; use a new id for a new decision"
    )]
    ContentDiffers {
        /// The checkpoint.
        checkpoint: String,
    },

    // --- explain ---
    /// The digest of the bundle cannot be read.
    #[error(
        "bundle: it is not a digest; write \"sha256:\" and 64 hexadecimal digits, or leave it out for the live bundle"
    )]
    BundleDigest,
    /// The bundle is none of the checkpoint's on this server.
    #[error(
        "bundle {bundle} does not answer or observe at checkpoint {checkpoint:?} on this server; leave it out for the live bundle"
    )]
    BundleNotHeld {
        /// The digest that was sent.
        bundle: String,
        /// The checkpoint.
        checkpoint: String,
    },
    /// The bundle has no covers.
    #[error("bundle {bundle} has no covers, so it cannot be explained; build it again from its model")]
    NoCovers {
        /// The bundle's digest.
        bundle: String,
    },
    /// The action to explain, or the one to compare with, breaks a rule.
    #[error("{field}: {rule}")]
    ExplainedAction {
        /// `action` or `against`.
        field: &'static str,
        /// The rule and the remedy.
        rule: String,
    },
    /// As many explanations wait or run as may.
    #[error("{limit} explanations wait or run, the limit; retry with back-off or raise explain_queue")]
    ExplanationsFull {
        /// The limit.
        limit: usize,
    },
    /// The server is under pressure and computes no explanations.
    #[error("the server is under pressure and computes no explanations; retry when the load is lower")]
    ExplanationsStopped,

    // --- outcomes ---
    /// The kind of the outcome is empty, too long or not printable.
    #[error("kind: {got}; use 1 to {max} printable ASCII characters, such as \"authorised\"")]
    OutcomeKind {
        /// The fault.
        got: String,
        /// Greatest allowed length in bytes.
        max: usize,
    },
    /// The kind of the source is not one that this version knows.
    #[error(
        "source.kind {got} is not known to this server; use UNSPECIFIED, REVIEWER, MERCHANT, ISSUER or SCHEME, or \
         upgrade the server"
    )]
    OutcomeSourceKind {
        /// The number that was sent.
        got: i32,
    },
    /// The id of the source is too long or not printable.
    #[error("source.id: {got}; use at most {max} printable ASCII characters, or leave it empty")]
    OutcomeSourceId {
        /// The fault.
        got: String,
        /// Greatest allowed length in bytes.
        max: usize,
    },
    /// The value is NaN or infinite.
    #[error("value is not finite; report a finite number, usually 0 or 1")]
    OutcomeValue,
    /// The same revision was reported with another value.
    #[error(
        "outcome {kind:?} of this decision is recorded with another value for revision {revision}; send a higher \
         revision to replace it"
    )]
    OutcomeConflict {
        /// The kind.
        kind: String,
        /// The revision.
        revision: u32,
    },
    /// The value is outside the declared range.
    #[error(
        "value of outcome {kind:?} is outside the checkpoint's range, {min} to {max}; report one within it"
    )]
    OutcomeRange {
        /// The kind.
        kind: String,
        /// The least value.
        min: f64,
        /// The largest value.
        max: f64,
    },
    /// The revision is above the highest allowed.
    #[error("revision {revision} is above {max}, the highest; number the revisions of an outcome from 0")]
    OutcomeRevision {
        /// The revision that was sent.
        revision: u32,
        /// The limit.
        max: u32,
    },
    /// There are too many reports of one outcome.
    #[error(
        "outcome {kind:?} of this decision was reported {most} times within a minute, the limit; report it later"
    )]
    OutcomeRate {
        /// The kind.
        kind: String,
        /// The limit.
        most: u32,
    },
    /// There are too many reports of one caller.
    #[error("this caller reports more than {most} outcomes a second, the limit; spread them over more time")]
    CallerRate {
        /// The limit.
        most: u32,
        /// Time in milliseconds after which the next report can succeed.
        retry_after_ms: u64,
    },
    /// The token is not valid.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The outcome is not proven, and unproven outcomes are refused.
    #[error(
        "the outcome is not proven, and this server refuses unproven outcomes; send the decision_token of the decision's answer"
    )]
    Unproven,
    /// There is no decision log.
    #[error("no decision log is configured, so outcomes cannot be recorded; set [log] dir and restart")]
    NoLog,
    /// The log does not accept the record.
    #[error("{0}; the outcome is not recorded, report it again later")]
    Log(String),

    // --- defects ---
    /// A defect of the server. The event with this id contains the details.
    #[error("internal error, id {id}; the server's log has the details under this id")]
    Internal {
        /// A UUID.
        id: String,
    },
}

// === impl Rejection ===

impl Rejection {
    /// Creates the rejection of a request that admission control sheds.
    #[must_use]
    pub fn shed(shed: &Shed) -> Rejection {
        match shed.reason {
            ShedReason::Deadline => Rejection::Deadline,
            reason => {
                // Rounded up, because a retry within the same millisecond would be shed again.
                let millis = |after: scorer_admission::Nanos| after.0.div_ceil(1_000_000);
                Rejection::Shed { reason, retry_after_ms: shed.retry_after.map(millis) }
            }
        }
    }

    /// Names the step of a request with two decisions that is rejected.
    #[must_use]
    pub fn at_step(self, step: &'static str) -> Rejection {
        Rejection::Step { step, rejection: Box::new(self) }
    }

    /// The value of `grpc-retry-pushback-ms`: the delay of a retry in milliseconds, or -1 for no retry. `None` leaves
    /// it to the caller.
    #[must_use]
    pub fn retry_pushback_ms(&self) -> Option<i64> {
        match self {
            Rejection::Step { rejection, .. } => rejection.retry_pushback_ms(),
            Rejection::Shed { retry_after_ms, .. } => {
                Some(retry_after_ms.and_then(|ms| i64::try_from(ms).ok()).unwrap_or(-1))
            }
            Rejection::CallerRate { retry_after_ms, .. } => {
                Some(i64::try_from(*retry_after_ms).unwrap_or(i64::MAX))
            }
            Rejection::EventsBusy { retry_after_ms } => {
                Some(i64::try_from(*retry_after_ms).unwrap_or(i64::MAX))
            }
            Rejection::Overloaded { .. }
            | Rejection::ShareUsed { .. }
            | Rejection::Capped
            | Rejection::ExplanationsFull { .. }
            | Rejection::ExplanationsStopped => Some(-1),
            _ => None,
        }
    }
}

/// The rule and the remedy for a request that was shed.
fn rule(reason: ShedReason) -> &'static str {
    match reason {
        ShedReason::Deadline => "the time allowed is shorter than the work takes; allow more",
        ShedReason::Wait => {
            "it would wait for longer than its deadline allows; send less load or add capacity"
        }
        ShedReason::Limit => "as much work is in flight as can be on time; send less load or add capacity",
        ShedReason::Tier => "requests of higher tiers need the capacity; retry when the load is lower",
        ShedReason::Bulk => "bulk work runs when no request waits; retry when the load is lower",
    }
}
