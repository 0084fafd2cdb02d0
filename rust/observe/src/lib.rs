//! Observe lanes evaluate other bundles on requests that were answered, without answering themselves.
//!
//! The engine passes each answered request to the observe lanes of its checkpoint through a [`Subscription`], its
//! answer sink. This costs one keyed draw, each lane's filter, and a copy into the lane's bounded queue; it wakes no
//! thread. Each lane's own thread reads its queue every few milliseconds, evaluates requests in the idle scheduling
//! class, and passes its records to the supervisor, which appends them to the decision log and reports stuck lanes.
//!
//! Answering threads and lanes share only the queues and the counters. A lane that loops, panics or has too many
//! requests changes only its own counters.
//!
//! Lanes of the shadow pool are not evaluated in this process: a forwarder sends their sampled requests to servers of
//! role `shadow`.

#![forbid(unsafe_code)]

mod computed;
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
