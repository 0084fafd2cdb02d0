//! Interfaces of the operating system that have no safe equivalent, each behind a safe function.
//!
//! All `unsafe` code of the data plane that is not an evaluation kernel is in this crate, so that the crates above it
//! forbid it. Functions that tune the system are best effort: where the kernel refuses a request or lacks it,
//! the program works as before, only less well.

pub mod memory;
pub mod process;
pub mod sched;
pub mod tcp;
pub mod throttle;
pub mod unix;
