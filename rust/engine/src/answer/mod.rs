//! The answer path. Its stages, one file each, in the order in which [`sequence`] runs them:
//!
//! `identify` → `replay` → `route` → `features` → `admit` → `evaluate` → `decide` → `record`
//!
//! and at the end the lane's [`AnswerSink`](crate::lanes::AnswerSink). A server puts its adapters around them: arrival
//! and decoding before, the reply after. Evaluations that are expected to take long, and batches, run on the pool;
//! everything else runs on the thread that polls. A request waits only for its evaluation on the pool, for a concurrent
//! duplicate (same request id), and for the log where its reply depends on the record.

mod admit;
mod batch;
mod decide;
mod evaluate;
mod explain;
mod exposure;
mod features;
mod identify;
mod load;
mod many;
mod outcome;
mod paired;
mod pooled;
mod record;
mod replay;
mod route;
mod row_features;
mod rules;
mod score;
mod select;
mod sequence;

use std::sync::Arc;

pub(crate) use explain::check as check_reasons;
pub use features::{check_dense, check_fingerprint};
pub use identify::{check_decision_id, check_entity};
pub use outcome::{OutcomeReport, Reported};
pub use record::{direction, fill as fill_record, fill_faulted, fill_origins, rules as rules_of_record};

use crate::arrival::Arrival;
use crate::checkpoint::Checkpoint;
use crate::engine::Engine;

/// The state that the stages of one request share.
#[derive(Clone, Copy)]
pub(crate) struct RequestContext<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    pub(crate) arrival: &'a Arrival,
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) id: &'a str,
    /// Entity of the decision as the caller sent it. Lanes are drawn by it.
    pub(crate) entity: &'a str,
    /// Entity as it is recorded and passed to observers.
    pub(crate) recorded_entity: &'a str,
    /// The checkpoint of the other decision of the same request.
    pub(crate) linked: Option<&'a Checkpoint>,
}
