//! The answer path, one file per stage, in this order:
//!
//! `arrive` → `admit` → `decode` → `features` → `route` → `evaluate` → `decide` → `reply` → `log`
//!
//! `score`, `batch` and `select` each run the sequence for one method. From `decode` on it runs inline,
//! on the thread that read the request; it waits only for a twin with the same id, and for the device
//! where a checkpoint's durability is `sync`. Action decisions are logged before their reply is released.

pub(crate) mod admit;
pub(crate) mod arrive;
pub(crate) mod batch;
pub(crate) mod budget;
pub(crate) mod decide;
pub(crate) mod decode;
pub(crate) mod describe;
pub(crate) mod evaluate;
pub(crate) mod exposure;
pub(crate) mod features;
pub(crate) mod log;
pub(crate) mod outcome;
pub(crate) mod reply;
pub(crate) mod route;
pub(crate) mod rows;
pub(crate) mod score;
pub(crate) mod select;

use std::time::Duration;

/// One decision under way: what its stages have in common.
#[derive(Clone, Copy)]
pub(crate) struct Decision<'a> {
    pub(crate) checkpoint: &'a crate::state::Checkpoint,
    pub(crate) lane: &'a crate::lanes::LaneInForce,
    pub(crate) id: &'a str,
    pub(crate) entity: &'a str,
    /// Why the model's own answer is not what is given.
    pub(crate) fallback: Option<crate::metrics::Reason>,
    pub(crate) times: Times,
}

/// One request under way: what is known of it before a lane is drawn.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'a> {
    pub(crate) shared: &'a crate::state::Shared,
    pub(crate) arrival: &'a arrive::Arrival,
    pub(crate) checkpoint: &'a crate::state::Checkpoint,
    pub(crate) id: &'a str,
    pub(crate) entity: &'a str,
    /// What it names: observe lanes may read more of it than the bundle that answers.
    pub(crate) named: Option<&'a scorer_proto::v1::NamedFeatures>,
}

/// Microseconds, as replies and records carry them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub(crate) data_load_us: u32,
    pub(crate) exec_us: u32,
}

/// Whole microseconds; more than an hour is an hour and more.
pub(crate) fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}
