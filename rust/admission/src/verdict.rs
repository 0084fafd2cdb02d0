//! The input and the results of an admission decision.

use super::ticket::Ticket;
use super::time::Nanos;

/// The properties of a request that admission decides on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Index into [`super::Settings::checkpoints`].
    pub checkpoint: usize,
    /// Serial number of the bundle that will answer, never 0. Its measured cost is used; see
    /// [`super::Admission::expect`].
    pub bundle: u64,
    /// Number of rows to score; at least 1.
    pub rows: u32,
    /// Time at which the HEADERS were decoded.
    pub arrived: Nanos,
    /// The caller's timeout (`grpc-timeout`), counted from `arrived`.
    pub timeout: Option<Nanos>,
    /// Keyed hash of the caller.
    pub caller: u64,
    /// Keyed hash of the entity, rotated hourly. It determines the order of shedding within a tier.
    pub cohort: u64,
    /// A second evaluation of the same request, after the first; see [`super::Admission::split`].
    pub then: Option<Then>,
}

/// The second evaluation of a request that has two, each of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Then {
    /// Index into [`super::Settings::checkpoints`].
    pub checkpoint: usize,
    /// Serial number of the bundle that will answer there, never 0.
    pub bundle: u64,
}

/// The decision on an [`Ask`].
#[derive(Debug)]
#[must_use = "an admitted request holds cost until its ticket is finished or cancelled"]
pub enum Verdict {
    /// The request is admitted. Its ticket must be finished or cancelled exactly once, which [`super::Permit`] ensures.
    Admit(Ticket),
    /// The request is shed.
    Shed(Shed),
}

/// The reason why a request is shed, and how to answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shed {
    /// The reason.
    pub reason: ShedReason,
    /// The kind of answer.
    pub instead: Instead,
    /// Time after which a retry may succeed; `None` if the caller must not retry (`grpc-retry-pushback-ms: -1`).
    pub retry_after: Option<Nanos>,
}

/// How to answer a request that is shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// The checkpoint's fallback, if its exposure caps allow it; otherwise a refusal.
    Fallback,
    /// RESOURCE_EXHAUSTED, or DEADLINE_EXCEEDED for [`ShedReason::Deadline`].
    Refuse,
}

/// The reason why a request is shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ShedReason {
    /// The deadline has passed, or the evaluation would take longer than the remaining time.
    Deadline,
    /// The requests ahead of it would make it late.
    Wait,
    /// The concurrency limit, or the tier's part of it, is reached.
    Limit,
    /// The request is below the cut-off over tiers and cohorts.
    Tier,
    /// It is bulk work, and other requests wait.
    Bulk,
}

/// All reasons, in the order of their counters.
pub const SHED_REASONS: [ShedReason; 5] =
    [ShedReason::Deadline, ShedReason::Wait, ShedReason::Limit, ShedReason::Tier, ShedReason::Bulk];

/// Where an admitted request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the thread that decoded it, because passing it to the pool would take longer.
    Inline,
    /// On the evaluation pool, in the order of its [`Queue`].
    Pool,
}

/// The queues of the pool in order of priority. The pool serves the first queue that is not empty, in order of arrival.
/// Long work returns to the front of its queue after every chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Queue {
    /// Callers within an even share of the capacity; without pressure, all requests except bulk.
    First = 0,
    /// Callers above an even share, but within their max-min fair share.
    Second = 1,
    /// Callers above their max-min fair share, bulk requests, and tier 3.
    Last = 2,
}

/// Whether to start an admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Start {
    /// Start it now.
    Run,
    /// It would miss its deadline. Answer with the fallback or refuse; do not evaluate.
    TooLate,
}

/// How an admitted request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Time of the evaluation without waiting; zero if there was none.
    pub exec: Nanos,
    /// The source of the answer.
    pub outcome: Outcome,
}

/// The source of the answer to an admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The model.
    Model,
    /// The fallback, because the model was too late. `exec` is the time that the model used nevertheless.
    Fallback,
    /// No answer: an error was returned, which does not count as a latency of the service.
    Failed,
}

// === impl ShedReason ===

impl ShedReason {
    /// Returns the name of the reason in metrics and records.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            ShedReason::Deadline => "deadline",
            ShedReason::Wait => "wait",
            ShedReason::Limit => "limit",
            ShedReason::Tier => "tier",
            ShedReason::Bulk => "bulk",
        }
    }
}
