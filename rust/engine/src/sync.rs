//! The locks of the pool, the watchdog and the idempotency cache, and the counts of budgets. `make loom` replaces them by loom's, whose timed waits
//! end by a notification alone; see docs/conformance.md.

#[cfg(all(test, feature = "loom"))]
pub(crate) use loom::sync::atomic::AtomicU64;
#[cfg(all(test, feature = "loom"))]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(all(test, feature = "loom")))]
pub(crate) use std::sync::atomic::AtomicU64;
#[cfg(not(all(test, feature = "loom")))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
