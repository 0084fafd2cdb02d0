//! Takes the processor from an evaluation that does not end.
//!
//! A thread's lowest priority alone is not enough: it keeps others from waiting on a core, yet what the thread burns
//! there is charged to the process, by a container's quota or where the system shares cores between sessions, and the
//! threads that answer pay for it. So the kernel interrupts the thread after so much of its own processor time, and
//! the signal's handler sleeps: longer each time, until next to nothing is left of a loop.

use std::time::Duration;

/// Processor time without a rest; beyond any evaluation's limit.
const GRACE: Duration = Duration::from_millis(150);
/// Processor time between two rests from then on.
const EVERY: Duration = Duration::from_millis(5);
/// The first rest; each is twice as long as the one before.
const FIRST: Duration = Duration::from_millis(20);
/// The longest.
const LONGEST: Duration = Duration::from_secs(1);

#[cfg(target_os = "linux")]
pub(super) use linux::Brake;

/// Elsewhere there is none.
#[cfg(not(target_os = "linux"))]
pub(super) struct Brake;

#[cfg(not(target_os = "linux"))]
impl Brake {
    pub(super) fn new() -> Option<Brake> {
        None
    }

    pub(super) fn release(&self) {}
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "timers of a thread's processor time and signals have no safe interface")]
mod linux {
    use std::cell::Cell;
    use std::mem::zeroed;
    use std::ptr::{null, null_mut};
    use std::sync::OnceLock;
    use std::time::Duration;

    use libc::c_int;

    use super::{EVERY, FIRST, GRACE, LONGEST};

    /// One thread's; it cannot leave it.
    pub(crate) struct Brake(libc::timer_t);

    thread_local! {
        /// Rests since the last release. It needs no destructor, so it is there for as long as the thread is.
        static RESTS: Cell<u32> = const { Cell::new(0) };
    }

    // === impl Brake ===

    impl Brake {
        /// For the calling thread; `None` where the system has no signal or no timer to spare.
        pub(crate) fn new() -> Option<Brake> {
            let signal = signal()?;
            // The handler must not be the first to ask for it: that may allocate.
            RESTS.set(0);
            // SAFETY: all of its fields are integers, pointers or arrays of them.
            let mut event: libc::sigevent = unsafe { zeroed() };
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal;
            event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
            // SAFETY: as above.
            let (mut timer, mut set): (libc::timer_t, libc::sigset_t) = unsafe { zeroed() };
            // SAFETY: each pointer is to a live value of the type that the call reads or writes and does not keep. The
            // signal has its handler, so letting it through to this thread does not end the process.
            let made = unsafe {
                libc::sigemptyset(&raw mut set);
                libc::sigaddset(&raw mut set, signal);
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, null_mut()) == 0
                    && libc::timer_create(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut event, &raw mut timer) == 0
            };
            made.then_some(Brake(timer))
        }

        /// What the thread has used so far is forgotten.
        pub(crate) fn release(&self) {
            RESTS.set(0);
            let time = |time: Duration| libc::timespec {
                tv_sec: time.as_secs() as libc::time_t,
                tv_nsec: time.subsec_nanos().into(),
            };
            let every = libc::itimerspec { it_interval: time(EVERY), it_value: time(GRACE) };
            // SAFETY: the timer is this value's own, and the pointer is to a live value that the call reads and does
            // not keep. It fails for a time out of range alone.
            let _ = unsafe { libc::timer_settime(self.0, 0, &raw const every, null_mut()) };
        }
    }

    impl Drop for Brake {
        fn drop(&mut self) {
            // SAFETY: the timer is this value's own and nobody uses it afterwards. A signal that is under way finds its
            // handler, which uses nothing of this value.
            let _ = unsafe { libc::timer_delete(self.0) };
        }
    }

    /// A signal that nobody else uses, with the handler; found once for the process.
    fn signal() -> Option<c_int> {
        static SIGNAL: OnceLock<Option<c_int>> = OnceLock::new();
        *SIGNAL.get_or_init(|| (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev().find(|&signal| take(signal)))
    }

    fn take(signal: c_int) -> bool {
        // SAFETY: all of its fields are integers, pointers or arrays of them.
        let mut action: libc::sigaction = unsafe { zeroed() };
        // SAFETY: the pointer is to a live value that the call writes and does not keep.
        if unsafe { libc::sigaction(signal, null(), &raw mut action) } != 0
            || action.sa_sigaction != libc::SIG_DFL
        {
            return false;
        }
        let handler: extern "C" fn(c_int) = rest;
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: as above, the call reads. The handler has the signature that goes without SA_SIGINFO, and calls
        // nothing that may not be called from a handler.
        unsafe { libc::sigaction(signal, &raw const action, null_mut()) == 0 }
    }

    /// Runs on the thread whose timer it is, in the middle of whatever that does.
    extern "C" fn rest(_signal: c_int) {
        // SAFETY: the pointer is to this thread's own value.
        let errno = unsafe { *libc::__errno_location() };
        let rests = RESTS.try_with(|rests| rests.replace(rests.get().saturating_add(1))).unwrap_or(0);
        let time = FIRST.saturating_mul(1 << rests.min(16)).min(LONGEST);
        let time =
            libc::timespec { tv_sec: time.as_secs() as libc::time_t, tv_nsec: time.subsec_nanos().into() };
        // SAFETY: the pointer is to a live value that the call reads and does not keep; a handler may call it. What it
        // interrupted finds the error number as it was.
        unsafe {
            libc::nanosleep(&raw const time, null_mut());
            *libc::__errno_location() = errno;
        }
    }

    #[cfg(test)]
    mod tests {
        use std::time::Instant;

        use super::*;
        use scorer_os::sched::thread_cpu_time;

        #[test]
        fn a_loop_gets_ever_less_and_a_release_forgives() {
            let brake = Brake::new().unwrap();
            brake.release();
            let spin = |processor: Duration| {
                let (began, from) = (Instant::now(), thread_cpu_time());
                while thread_cpu_time() - from < processor {
                    std::hint::spin_loop();
                }
                began.elapsed()
            };
            let rests = |what: Duration| {
                spin(what);
                RESTS.get()
            };
            assert_eq!(rests(GRACE / 2), 0);
            brake.release();
            assert_eq!(rests(GRACE / 2), 0, "it had been released");
            // Three rests, at least as long as they are to be, whatever else the machine does.
            let took = spin(GRACE / 2 + EVERY * 3);
            assert!((2..=5).contains(&RESTS.get()), "{}", RESTS.get());
            assert!(took >= FIRST * 3, "{took:?}");
            brake.release();
            assert_eq!(rests(GRACE / 2), 0);
            drop(brake);
            assert_eq!(rests(GRACE * 2), 0);
        }
    }
}
