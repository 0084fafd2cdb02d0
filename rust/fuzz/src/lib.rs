//! What each fuzz target does with its input. A panic, on any thread, is a finding; so is a reply that reports an
//! internal error, and a program that takes too long or too much memory.
//!
//! Checksums are completed after mutation where a format has them: an input with a wrong checksum is rejected before
//! anything of interest reads it.

pub mod bundle;
pub mod card;
pub mod certificate;
pub mod connection;
pub mod forest;
pub mod jwt;
pub mod lanes;
pub mod log;
pub mod model;
pub mod request;
pub mod serving;
pub mod signature;
pub mod token;
