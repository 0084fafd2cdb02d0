//! Hostile clients, by raw frames. Every attack is made beside honest clients; what is asserted is that each honest call
//! succeeds, that the server's memory stays, that the attacker's connection ends and that a limit was counted.

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
