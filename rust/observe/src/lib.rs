//! Observe lanes: what other bundles would have answered.
//!
//! What a lane of the engine has answered is given to the observe lanes of its checkpoint through a [`Subscription`],
//! the engine's answer sink: one keyed draw, each lane's filter, and a copy into the lane's bounded queue. No thread is
//! woken. Each lane's own thread reads its queue every few milliseconds, evaluates with the processor time that is left
//! over, and hands its records to the supervisor, which appends them to the decision log and reports lanes that are
//! stuck.
//!
//! The two sides share no lock, no memory and no thread except that queue and the counters: a lane that loops, panics or
//! is flooded changes nothing but its own counters.
//!
//! Lanes of the shadow pool are not evaluated here: a forwarder sends what they sample to servers of role `shadow`.

#![forbid(unsafe_code)]

mod backoff;
mod config;
mod counters;
mod evaluate;
#[cfg(feature = "fault-injection")]
mod fault;
mod filter;
mod forward;
mod job;
mod lane;
mod mapping;
#[cfg(all(test, feature = "loom"))]
mod models;
mod named;
mod observers;
mod quantiles;
mod queue;
mod shadow_schema;
mod status;
mod subscription;
mod supervisor;
mod sync;
mod table;
mod thread;

pub use config::{MAX_MESSAGE, MAX_REQUESTS, ShadowPoolConfig};
#[cfg(feature = "fault-injection")]
pub use fault::{LaneFault, LaneFaults};
pub use forward::PoolStatus;
pub use job::Observed;
pub use lane::Lane;
pub use named::{NamedList, value};
pub use observers::{ObserveConfig, Observers};
pub use shadow_schema::{KnownSchema, SchemaCache, describe_feature};
pub use status::ObserverStatus;
pub use subscription::Subscription;
pub use table::ObserveLanes;
