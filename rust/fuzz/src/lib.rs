//! The fuzz targets. A finding is a panic on any thread, a reply that reports an internal error, or too much time or
//! memory.
//!
//! If a format has checksums, they are computed after mutation, because an input with a wrong checksum would be
//! rejected before most of the code reads it.

pub mod bundle;
pub mod card;
pub mod certificate;
pub mod connection;
pub mod features;
pub mod forest;
pub mod function;
pub mod jwt;
pub mod lanes;
pub mod log;
pub mod model;
pub mod net;
pub mod request;
pub mod rules;
pub mod serving;
pub mod signature;
pub mod token;
