//! The interface of the store of computed features.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;

use scorer_engine::FeatureSource;
use serde::Serialize;

/// A store that computes features from events, and gives their values.
pub(crate) trait EventStore: FeatureSource {
    /// Applies an event and queues it for the journal. The call does not wait.
    ///
    /// # Errors
    /// The event is not applied.
    fn record(&self, event: &EventRef<'_>, received_at_us: i64) -> Result<Recorded, NotRecorded>;

    /// Resolves when all events that were applied before the call are in the journal.
    fn written(&self) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

    /// Counts an event that broke a privacy rule.
    fn refused_for_privacy(&self);

    /// The current status.
    fn status(&self) -> StoreStatus;

    /// Writes the journal and a snapshot. Later events are refused.
    ///
    /// # Errors
    /// Some events may not be in the journal.
    fn close(&self) -> Result<(), String>;
}

/// An event whose parts are in the form in which they are stored.
pub(crate) struct EventRef<'a> {
    pub(crate) kind: &'a str,
    pub(crate) id: &'a str,
    pub(crate) occurred_at_us: i64,
    pub(crate) keys: &'a [(&'a str, &'a str)],
    pub(crate) numbers: &'a [(&'a str, f64)],
    pub(crate) texts: &'a [(&'a str, &'a str)],
}

/// The result of an accepted event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// It was applied.
    New,
    /// An event with the id was recorded before.
    Duplicate,
}

/// Why an event was not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotRecorded {
    /// The event is not valid.
    Refused {
        /// The name of the reason in replies and metrics.
        reason: &'static str,
        /// The field, the rule and the remedy.
        error: String,
    },
    /// The queue of the journal is full.
    Busy,
    /// The journal cannot be written.
    Journal(String),
}

/// The status of the store.
#[derive(Clone, Debug, Serialize)]
pub struct StoreStatus {
    /// The feature sets, as `name@version`.
    pub sets: Vec<String>,
    /// `ok`, or the error of the journal.
    pub state: String,
    /// Directory of the journal; empty if the state is only in memory.
    pub directory: String,
    /// Number of entities with state.
    pub entities: u64,
    /// Memory of the state in bytes.
    pub bytes: u64,
    /// The limit of the memory in bytes.
    pub max_bytes: u64,
    /// Number of recorded events since the start.
    pub recorded: u64,
    /// Number of duplicates since the start.
    pub duplicates: u64,
    /// Numbers of refused events since the start, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Number of entities that were removed to keep the limit.
    pub evicted: u64,
    /// Size of the journal in bytes.
    pub journal_bytes: u64,
    /// Time of the latest snapshot in microseconds since the Unix epoch; 0 if there is none.
    pub snapshot_at_us: i64,
}
