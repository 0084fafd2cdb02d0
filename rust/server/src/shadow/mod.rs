//! The shadow pool: servers of role `shadow` that observe on machines of their own what live servers sample.
//!
//! `forward` is the live side, `receive` the pool's; `schema` is how features are told from one to the other.
//! Live answers wait for nothing here: what the pool cannot take is counted and forgotten.

mod backoff;
mod forward;
mod receive;
mod schema;
mod senders;

pub(crate) use forward::Forwarder;
pub use forward::PoolStatus;
pub(crate) use receive::answer;
pub(crate) use schema::Remembered;
pub use senders::Received;
pub(crate) use senders::Senders;

/// Most requests in one call.
pub(crate) const MAX_REQUESTS: usize = 4096;
/// Longest call that the pool reads, bytes: schemas with large dictionaries ride along.
pub(crate) const MAX_MESSAGE: usize = 16 << 20;
