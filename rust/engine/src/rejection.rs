//! Why a request gets no answer, in the caller's terms. The server maps each to a status of its protocol.

use scorer_admission::{Shed, ShedReason};
use scorer_core::policy::MaskError;
use scorer_core::schema::SchemaError;
use scorer_token::TokenError;

/// Why one request is rejected: the field, the rule and the remedy.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Rejection {
    // --- admission ---
    /// The caller's deadline had passed before the work began.
    #[error("the deadline passed before the request was evaluated; allow more time or send less load")]
    Deadline,
    /// The server-wide cap is reached.
    #[error("{limit} requests are in flight, the limit; retry with back-off or raise max_inflight")]
    Overloaded {
        /// The cap.
        limit: usize,
    },
    /// The peer's share of that cap is used up, or the connection's part of what is left of it.
    #[error(
        "{got} requests of this {of} are in flight, its share; retry with back-off, spread the load over more {of}s or raise max_inflight_per_peer"
    )]
    ShareUsed {
        /// How many are.
        got: usize,
        /// Whose: "peer" or "connection".
        of: &'static str,
    },
    /// Not worked on, so that others can be on time.
    #[error("shed ({reason}): {rule}", reason = .reason.as_str(), rule = rule(*.reason))]
    Shed {
        /// The rule that decided.
        reason: ShedReason,
        /// When a retry has a chance, milliseconds; none has where it is absent.
        retry_after_ms: Option<u64>,
    },
    /// The fallback has decided as much as it may.
    #[error("the model cannot answer, and the fallback has reached its exposure cap; decide by other means")]
    Capped,
    /// The bundle is out of service and there is nothing else to answer with.
    #[error("bundle {bundle} is out of service after failing repeatedly; roll back or publish a working one")]
    BreakerOpen {
        /// The bundle's digest.
        bundle: String,
    },
    /// The server is stopping.
    #[error("the server is stopping; retry on another replica")]
    Draining,

    // --- identify ---
    /// No such checkpoint.
    #[error("checkpoint {name:?} is not configured; this server has {known}")]
    UnknownCheckpoint {
        /// What was asked for, shortened.
        name: String,
        /// The configured ones.
        known: String,
    },
    /// The method does not fit the checkpoint.
    #[error("checkpoint {name:?} is of kind {kind}; call {method}")]
    WrongKind {
        /// The checkpoint.
        name: String,
        /// Its kind.
        kind: &'static str,
        /// The method that fits.
        method: &'static str,
    },
    /// The idempotency key breaks its rule.
    #[error("{field}: {got}; use 1 to {max} printable ASCII characters")]
    Id {
        /// `request_id` or `decision_id`.
        field: &'static str,
        /// What is wrong with it; never the id itself, which may hold anything.
        got: String,
        /// Longest allowed.
        max: usize,
    },
    /// Another field is too long.
    #[error("{field}: {bytes} bytes; at most {max} are allowed")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },

    /// A text or a number is a card number, which must not be stored.
    #[error("{field}: holds a card number; send a token or a keyed hash in its place")]
    CardNumber {
        /// The field; the value is never repeated.
        field: &'static str,
    },
    /// A time that no outcome has.
    #[error("occurred_at_ms is out of range; send milliseconds since 1970, or 0 if the time is not known")]
    OccurredAt,

    // --- features ---
    /// Neither form of features is set.
    #[error("features: neither \"named\" nor \"dense\" is set; send one of them")]
    NoFeatures,
    /// The schema refuses a value.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The same, in one row of a batch.
    #[error("row {row}: {error}")]
    Row {
        /// Counted from 0.
        row: usize,
        /// What is wrong with it.
        error: SchemaError,
    },
    /// The caller's idea of the schema is not the bundle's.
    #[error(
        "schema_fingerprint {got:#018x} is not that of bundle {bundle}, {expected:#018x}; call Describe and build the vector again"
    )]
    Fingerprint {
        /// What was sent.
        got: u64,
        /// The bundle's.
        expected: u64,
        /// The bundle's digest.
        bundle: String,
    },
    /// A batch without rows.
    #[error("rows is 0; send at least one row")]
    NoRows,
    /// A batch with too many rows.
    #[error("rows is {rows}, the checkpoint takes at most {max}; split the batch")]
    TooManyRows {
        /// Rows sent.
        rows: u32,
        /// The checkpoint's limit.
        max: u32,
    },
    /// The values do not fill the rows.
    #[error(
        "values: {got} values for {rows} rows of {features} features; send {rows} x {features}, row by row"
    )]
    Shape {
        /// Values sent.
        got: usize,
        /// Rows sent.
        rows: u32,
        /// Features of the schema.
        features: usize,
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
    /// Both forms at once.
    #[error("eligible: both \"ids\" and \"mask\" are set; send one of them")]
    BothForms,
    /// A mask without a bit.
    #[error("eligible.mask: no action is eligible; set at least one bit")]
    EmptyMask,
    /// The mask does not fit the catalogue.
    #[error(transparent)]
    Mask(#[from] MaskError),
    /// An id outside the catalogue.
    #[error(
        "eligible.ids: action {id:?} is not in the catalogue of bundle {bundle}; call Describe for its {actions} actions"
    )]
    UnknownAction {
        /// What was sent, shortened.
        id: String,
        /// The bundle's digest.
        bundle: String,
        /// Size of the catalogue.
        actions: usize,
    },
    /// An id given twice.
    #[error("eligible.ids: action {id:?} is listed twice; list it once")]
    RepeatedAction {
        /// The action.
        id: String,
    },
    /// More ids than actions.
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
    /// The id was used for something else.
    #[error(
        "request_id was used before at checkpoint {checkpoint:?} with other content; use a new id for a new decision"
    )]
    ContentDiffers {
        /// The checkpoint.
        checkpoint: String,
    },

    // --- outcomes ---
    /// No kind, or no plain one.
    #[error("kind: {got}; use 1 to {max} printable ASCII characters, such as \"authorised\"")]
    OutcomeKind {
        /// What is wrong with it.
        got: String,
        /// Longest allowed.
        max: usize,
    },
    /// NaN or infinite.
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
    /// Outside the declared range.
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
    /// A revision above the highest.
    #[error("revision {revision} is above {max}, the highest; number the revisions of an outcome from 0")]
    OutcomeRevision {
        /// What was sent.
        revision: u32,
        /// The limit.
        max: u32,
    },
    /// Too many reports of one outcome.
    #[error(
        "outcome {kind:?} of this decision was reported {most} times within a minute, the limit; report it later"
    )]
    OutcomeRate {
        /// The kind.
        kind: String,
        /// The limit.
        most: u32,
    },
    /// Too many reports of one caller.
    #[error("this caller reports more than {most} outcomes a second, the limit; spread them over more time")]
    CallerRate {
        /// The limit.
        most: u32,
        /// When the next report has a chance, milliseconds.
        retry_after_ms: u64,
    },
    /// The token proves nothing.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Nothing proves the outcome.
    #[error(
        "the outcome is not proven, and this server refuses such; send the decision_token of the decision's answer"
    )]
    Unproven,
    /// There is no log to keep it in.
    #[error("no decision log is configured, so outcomes cannot be kept; set [log] dir and restart")]
    NoLog,
    /// The log does not take it.
    #[error("{0}; the outcome is not recorded, report it again later")]
    Log(String),

    // --- defects ---
    /// Something that must not happen; the details are in the event log under the id.
    #[error("internal error, id {id}; the server's log has the details under this id")]
    Internal {
        /// A UUID.
        id: String,
    },
}

// === impl Rejection ===

impl Rejection {
    /// The rejection of a request that admission control sheds.
    #[must_use]
    pub fn shed(shed: &Shed) -> Rejection {
        match shed.reason {
            ShedReason::Deadline => Rejection::Deadline,
            reason => {
                // Rounded up: a retry within the same millisecond would be shed again.
                let millis = |after: scorer_admission::Nanos| after.0.div_ceil(1_000_000);
                Rejection::Shed { reason, retry_after_ms: shed.retry_after.map(millis) }
            }
        }
    }

    /// `grpc-retry-pushback-ms`: when to retry, or -1 for never; nothing where the caller is to decide.
    #[must_use]
    pub fn retry_pushback_ms(&self) -> Option<i64> {
        match self {
            Rejection::Shed { retry_after_ms, .. } => {
                Some(retry_after_ms.and_then(|ms| i64::try_from(ms).ok()).unwrap_or(-1))
            }
            Rejection::CallerRate { retry_after_ms, .. } => {
                Some(i64::try_from(*retry_after_ms).unwrap_or(i64::MAX))
            }
            Rejection::Overloaded { .. } | Rejection::ShareUsed { .. } | Rejection::Capped => Some(-1),
            _ => None,
        }
    }
}

/// Rule and remedy of a shed request.
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
