//! Which requests are worked on, in which order, and until when: the SLA, enforced.
//!
//! Pure: no I/O, no thread, no clock. Time is passed in as [`Nanos`], so the server and the simulator drive
//! the very same code. [`Admission::ask`], [`Admission::start`] and [`Admission::finish`] take no lock and do
//! not allocate; [`Admission::tick`] turns every 100 ms what was seen into the rules of the next.
//!
//! ```
//! use scorer_admission::*;
//!
//! let checkpoint =
//!     CheckpointSettings { mode: Mode::Enforce, fallback: true, ..CheckpointSettings::new(Nanos::from_millis(10)) };
//! let admission = Admission::new(Settings::new(2, vec![checkpoint]))?;
//! admission.expect(0, 1, Nanos::from_micros(20)); // checkpoint 0, bundle 1: what its warm-up measured
//!
//! let now = Nanos::from_secs(5);
//! let ask = Ask { checkpoint: 0, bundle: 1, rows: 1, arrived: now, timeout: None, caller: 7, cohort: 9 };
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
//! Parameters, their defaults and the reasons: `docs/admission.md`.

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
mod pressure;
mod reply_cell;
mod ring;
mod settings;
mod snapshot;
mod standing;
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
pub use reply_cell::{Byte, Reply, ReplyCell};
pub use settings::{CheckpointSettings, MAX_CHECKPOINTS, Mode, Settings, SettingsError, TIERS};
pub use snapshot::{Counted, Snapshot};
pub use tick::WINDOW;
pub use ticket::{Permit, Ticket};
pub use time::Nanos;
pub use verdict::{
    Ask, Instead, Outcome, Place, Queue, SHED_REASONS, Served, Shed, ShedReason, Start, Verdict,
};
