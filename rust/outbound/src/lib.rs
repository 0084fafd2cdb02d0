//! Connections from the server to other services: the shadow pool and the collector of traces.

#![forbid(unsafe_code)]

mod backoff;
mod connect;
mod target;

pub use backoff::Backoff;
pub use connect::{connect, with_causes};
pub use target::is_target;
