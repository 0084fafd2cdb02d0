//! The atomics of what threads share without a lock. `make loom` replaces them by loom's, which try every interleaving
//! of a model, and every value that the memory model lets a thread read; see docs/conformance.md.

#[cfg(all(test, feature = "loom"))]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
#[cfg(not(all(test, feature = "loom")))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
