//! Interfaces of the operating system that have no safe equivalent, each behind a safe function.
//!
//! All `unsafe` code of the data plane that is not an evaluation kernel is in this crate, so that the crates above it
//! can forbid it. Functions that tune the system are best effort: if the kernel refuses or does not support a request,
//! the program stays correct and is only slower.

pub mod memory;
pub mod process;
pub mod sched;
pub mod tcp;
pub mod throttle;
pub mod unix;
