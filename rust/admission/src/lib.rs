//! Admission control decides whether to accept a request, in which order requests run, and when the server gives up on
//! one, so that accepted requests meet their SLA.
//!
//! The crate has no I/O, threads or clock. Callers pass in the time as [`Nanos`], so the server and the simulator run
//! the same code. [`Admission::ask`], [`Admission::start`] and [`Admission::finish`] take no lock and do not allocate.
//! [`Admission::tick`] derives new rules from the measurements of each window of 100 ms.
//!
//! ```
//! use scorer_admission::*;
//!
//! let checkpoint =
//!     CheckpointSettings { mode: Mode::Enforce, fallback: true, ..CheckpointSettings::new(Nanos::from_millis(10)) };
//! let admission = Admission::new(Settings::new(2, vec![checkpoint]))?;
//! admission.expect(0, 1, Nanos::from_micros(20)); // checkpoint 0, bundle 1: the time measured by its warm-up
//!
//! let now = Nanos::from_secs(5);
//! let ask = Ask { checkpoint: 0, bundle: 1, rows: 1, arrived: now, timeout: None, caller: 7, cohort: 9, then: None };
//! match admission.ask(now, &ask) {
//!     Verdict::Shed(shed) => println!("{}", shed.reason.as_str()), // fallback or refusal, see `shed.instead`
//!     Verdict::Admit(ticket) => {
//!         let mut permit = Permit::new(&admission, ticket); // dropped, it is cancelled
//!         if permit.start(now) == Start::Run {
//!             // evaluate until permit.finish_by(); then the first to claim the ReplyCell replies
//!         }
//!         permit.finish(now, Served { exec: Nanos::from_micros(18), outcome: Outcome::Model });
//!     }
//! }
//! # Ok::<(), SettingsError>(())
//! ```
//!
//! `docs/admission.md` describes the parameters, their defaults and the reasons.

#![forbid(unsafe_code)]

mod admit;
mod breaker;
mod callers;
mod capacity;
mod cost;
mod cutoff;
mod error_budget;
mod exposure;
mod histogram;
mod limiter;
mod load;
mod margin;
#[cfg(all(test, feature = "loom"))]
mod models;
mod pressure;
mod reply_cell;
mod ring;
mod settings;
mod snapshot;
mod standing;
mod sync;
#[cfg(test)]
mod tests;
mod tick;
mod ticket;
mod time;
mod verdict;

pub use admit::Admission;
pub use breaker::{Breaker, BreakerSettings, BreakerState, Evaluation};
pub use error_budget::{Alarm, BurnRates, ErrorBudget};
pub use exposure::{CapHit, Caps, Exposure, ExposureCaps};
pub use pressure::Pressure;
pub use reply_cell::{Reply, ReplyCell};
pub use settings::{CheckpointSettings, MAX_CHECKPOINTS, Mode, Settings, SettingsError, TIERS};
pub use snapshot::{Counted, Snapshot};
pub use tick::WINDOW;
pub use ticket::{Permit, Ticket};
pub use time::Nanos;
pub use verdict::{
    Ask, Instead, Outcome, Place, Queue, SHED_REASONS, Served, Shed, ShedReason, Start, Then, Verdict,
};
