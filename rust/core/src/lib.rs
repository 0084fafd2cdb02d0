//! The parts of a decision: forests and their explanation, the policy, the feature schema and the bundle that contains
//! them.
//!
//! The crate only computes: it does no I/O and uses no async runtime, clock or Python. Everything is loaded and
//! validated once, is then immutable and `Send + Sync`, and is evaluated without allocating memory.

pub mod budget;
pub mod bundle;
pub mod explain;
pub mod forest;
pub mod policy;
mod quote;
pub mod schema;

pub use quote::quotable;
