//! The state of computed features in Redis or Valkey.
//!
//! A [`Pool`] reads the states of a request's entities in one round trip. A [`Writer`] applies the events of a feed: it
//! reads the states of their entities, changes them, and writes them with the position in the feed in one transaction.
//! [`Keys`] names the keys of both.

#![forbid(unsafe_code)]

mod config;
mod connection;
mod counters;
mod dial;
mod keys;
mod pool;
mod resp;
mod writer;

pub use config::RedisConfig;
pub use counters::{BlobResult, ReadFailure, RedisCounters};
pub use keys::Keys;
pub use pool::{Message, Pool, Read};
pub use resp::{Reply, command};
pub use writer::{Applied, Change, Position, WriteError, Writer};
