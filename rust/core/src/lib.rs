//! What a decision is made of: forest, policy, feature schema and the bundle that ties them together.
//!
//! Pure computation: no I/O, no async runtime, no clock, no Python. Everything is loaded and validated once, is
//! then immutable and `Send + Sync`, and is evaluated without allocating.

pub mod budget;
pub mod bundle;
pub mod forest;
pub mod policy;
mod quote;
pub mod schema;

pub use quote::quotable;
