//! A question to admission, and its answers.

use super::ticket::Ticket;
use super::time::Nanos;

/// May this request be worked on?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Index into [`super::Settings::checkpoints`].
    pub checkpoint: usize,
    /// Serial of the bundle that will answer, never 0; its measured cost decides. See [`super::Admission::expect`].
    pub bundle: u64,
    /// Rows to score; at least 1.
    pub rows: u32,
    /// When the HEADERS were decoded.
    pub arrived: Nanos,
    /// What the caller allows (`grpc-timeout`), counted from `arrived`.
    pub timeout: Option<Nanos>,
    /// Keyed hash of the caller.
    pub caller: u64,
    /// Keyed hash of whom it is about (the entity, rotated hourly): decides who is shed first inside a tier.
    pub cohort: u64,
}

/// The answer to an [`Ask`].
#[derive(Debug)]
#[must_use = "an admitted request holds cost until its ticket is finished or cancelled"]
pub enum Verdict {
    /// Go on. The ticket has to be finished or cancelled, exactly once; [`super::Permit`] sees to it.
    Admit(Ticket),
    /// Do not.
    Shed(Shed),
}

/// Why a request is rejected, and what its caller gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shed {
    /// Why.
    pub reason: ShedReason,
    /// How to answer.
    pub instead: Instead,
    /// After how long a retry has a chance; `None`: do not retry (`grpc-retry-pushback-ms: -1`).
    pub retry_after: Option<Nanos>,
}

/// How to answer a request that is shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// With the checkpoint's fallback, if its exposure caps allow; otherwise refuse.
    Fallback,
    /// RESOURCE_EXHAUSTED, or DEADLINE_EXCEEDED for [`ShedReason::Deadline`].
    Refuse,
}

/// Why a request is shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ShedReason {
    /// The work alone would take longer than is left, or the deadline has passed.
    Deadline,
    /// What waits ahead of it would make it late.
    Wait,
    /// The concurrency limit, or the tier's part of it, is used up.
    Limit,
    /// Below the cut-off over tiers and cohorts.
    Tier,
    /// Bulk work while others wait.
    Bulk,
}

/// Every reason, in the order of their counters.
pub const SHED_REASONS: [ShedReason; 5] =
    [ShedReason::Deadline, ShedReason::Wait, ShedReason::Limit, ShedReason::Tier, ShedReason::Bulk];

/// Where an admitted request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the thread that decoded it: it takes less time than handing it over would.
    Inline,
    /// On the evaluation pool, in the order of its [`Queue`].
    Pool,
}

/// Which requests run before which. The pool takes from the first queue that holds something, and from each
/// in the order of arrival. Long work goes back to the front of its queue after every chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Queue {
    /// Callers within an even share of the capacity; without pressure everybody but bulk.
    First = 0,
    /// Callers above an even share but within what max-min fairness leaves them.
    Second = 1,
    /// Callers beyond that, bulk, and tier 3.
    Last = 2,
}

/// Whether to start work that was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Start {
    /// Now.
    Run,
    /// It could not be on time any more: answer with the fallback or refuse, do not evaluate.
    TooLate,
}

/// How an admitted request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// What the evaluation took, without waiting; zero if there was none.
    pub exec: Nanos,
    /// Who answered.
    pub outcome: Outcome,
}

/// Who answered an admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The model.
    Model,
    /// The fallback, because the model was too late; `exec` is what was spent on it nevertheless.
    Fallback,
    /// Not answered: an error was returned. Not a latency of this service.
    Failed,
}

// === impl ShedReason ===

impl ShedReason {
    /// The reason as metrics and records spell it.
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
