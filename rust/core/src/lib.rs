//! What a decision is made of: forest, policy, feature schema and the bundle that ties them together.
//!
//! Pure computation: no I/O, no clock, no threads. Everything is loaded and validated once and is then
//! immutable, `Send + Sync`, and evaluated without allocating.

pub mod bundle;
pub mod forest;
pub mod policy;
pub mod schema;
