//! Malicious clients that send raw frames while honest clients call. The tests assert that each honest call
//! succeeds, that the memory of the server does not grow, that the attacker's connection is closed and that a
//! limit was counted.

#![allow(unreachable_pub, reason = "modules of a test binary")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

mod connections;
mod frames;
mod honest;
mod messages;
mod network;
mod streams;
#[path = "../support/mod.rs"]
mod support;
