//! The append-only decision log: segments, durability classes, recovery, reading, and the outcome index.
//!
//! All code uses [`Fs`], [`Clock`] and [`Random`], so that the simulator in `sim` can test the same code with torn
//! writes, full disks, failing `fdatasync` and crashes. `docs/decision-log.md` describes the format and the guarantees.

#![forbid(unsafe_code)]

mod clock;
mod config;
mod directory;
mod error;
mod finding;
mod format;
mod fs;
mod log;
#[cfg(all(test, feature = "loom"))]
mod models;
mod outcomes;
mod queue;
mod reader;
mod receipt;
mod recovery;
mod retention;
mod scan;
mod segment;
mod shared;
#[doc(hidden)]
pub mod sim;
mod space;
mod sync;
mod upkeep;
mod writer;

pub use clock::{Clock, Random, RealClock, RealRandom};
pub use config::{Durability, LogConfig};
pub use error::LogError;
pub use finding::{Finding, FindingKind, Severity};
pub use fs::{DirLock, Entry, Env, File, Fs, RealFs};
pub use log::{Log, LogState, LogStatus};
pub use outcomes::{Outcome, OutcomeIndex, OutcomeKey, ReportRate};
pub use reader::{Reader, Record, SegmentSummary};
pub use receipt::{Receipt, Slot};
pub use recovery::Recovery;
pub use retention::{Blocked, Pruned, Retention, mark_shipped, shipped};
pub use upkeep::Upkeep;
