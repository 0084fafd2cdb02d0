//! The primitives with which callers, the writer thread and rounds of `fdatasync` wait. `make loom` replaces them by
//! those of loom; see docs/conformance.md.

#[cfg(all(test, feature = "loom"))]
pub(crate) use model::{Condvar, Mutex, MutexGuard, Thread, current, park, park_timeout};
#[cfg(not(all(test, feature = "loom")))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(all(test, feature = "loom")))]
pub(crate) use std::thread::{Thread, current, park, park_timeout};

/// loom's, with the rest of the standard library's interface.
#[cfg(all(test, feature = "loom"))]
mod model {
    use std::sync::{LockResult, PoisonError};
    use std::time::Duration;

    pub(crate) use loom::sync::{Mutex, MutexGuard};
    pub(crate) use loom::thread::{Thread, current, park};

    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Condvar {
            Condvar(loom::sync::Condvar::new())
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }

        pub(crate) fn wait_while<'a, T>(
            &self,
            mut guard: MutexGuard<'a, T>,
            mut condition: impl FnMut(&mut T) -> bool,
        ) -> LockResult<MutexGuard<'a, T>> {
            while condition(&mut guard) {
                guard = self.0.wait(guard)?;
            }
            Ok(guard)
        }

        /// Time passes without a notification; `Duration::MAX` never does.
        pub(crate) fn wait_timeout_while<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            limit: Duration,
            condition: impl FnMut(&mut T) -> bool,
        ) -> LockResult<(MutexGuard<'a, T>, ())> {
            if limit < Duration::MAX {
                return Ok((guard, ()));
            }
            let guard = self.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner);
            Ok((guard, ()))
        }
    }

    impl Default for Condvar {
        fn default() -> Condvar {
            Condvar::new()
        }
    }

    pub(crate) fn park_timeout(_: Duration) {
        loom::thread::yield_now();
    }
}
