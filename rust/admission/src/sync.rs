//! The atomics of state that threads share without locks. `make loom` replaces them by those of loom, which try every
//! interleaving of a model and every value that the memory model allows a thread to read; see docs/conformance.md.

#[cfg(all(test, feature = "loom"))]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
#[cfg(not(all(test, feature = "loom")))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
