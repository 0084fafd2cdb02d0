//! Synchronisation primitives. `make loom` replaces them by those of loom; see docs/conformance.md.

#[cfg(all(test, feature = "loom"))]
pub(crate) use loom::sync::atomic::AtomicUsize;
#[cfg(all(test, feature = "loom"))]
pub(crate) use model::Mutex;
#[cfg(not(all(test, feature = "loom")))]
pub(crate) use std::sync::{Mutex, atomic::AtomicUsize};

#[cfg(all(test, feature = "loom"))]
mod model {
    use std::sync::LockResult;

    use loom::sync::MutexGuard;

    /// A lock for which no thread ever waits.
    #[derive(Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            Ok(self.0.try_lock().expect("the lock is free whenever it is taken"))
        }
    }
}
