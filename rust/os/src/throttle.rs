//! Throttles a thread that exceeds its budget of processor time.
//!
//! The lowest scheduling class alone does not protect other threads: it keeps them from waiting for a core, yet the
//! processor time that the thread uses is charged to the process, by a container's quota or where the system shares
//! cores between sessions. Therefore the kernel interrupts the thread after a budget of its own processor time, and the
//! signal's handler sleeps, with exponential backoff up to 1 s, so that a runaway loop uses less than 1 % of a core.

use std::time::Duration;

/// Processor time before the first rest.
const GRACE: Duration = Duration::from_millis(150);
/// Processor time between two rests from then on.
const EVERY: Duration = Duration::from_millis(5);
/// The first rest; each is twice as long as the one before.
const FIRST: Duration = Duration::from_millis(20);
/// The longest rest.
const LONGEST: Duration = Duration::from_secs(1);

#[cfg(target_os = "linux")]
pub use linux::CpuThrottle;

/// There is no throttle on this system.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub struct CpuThrottle;

#[cfg(not(target_os = "linux"))]
impl CpuThrottle {
    /// There is none.
    #[must_use]
    pub fn new() -> Option<CpuThrottle> {
        None
    }

    /// Does nothing.
    pub fn release(&self) {}
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "timers of a thread's processor time and signals have no safe interface")]
mod linux {
    use std::cell::Cell;
    use std::mem::zeroed;
    use std::ptr::{null, null_mut, without_provenance_mut};
    use std::sync::OnceLock;
    use std::time::Duration;

    use libc::{c_int, c_void, siginfo_t};

    use super::{EVERY, FIRST, GRACE, LONGEST};

    /// The throttle of the thread that created it. It cannot be sent to another thread.
    #[derive(Debug)]
    pub struct CpuThrottle(libc::timer_t);

    thread_local! {
        /// Rests since the last release. It has no destructor, so it is valid for as long as the thread runs.
        static RESTS: Cell<u32> = const { Cell::new(0) };
    }

    // === impl CpuThrottle ===

    impl CpuThrottle {
        /// A throttle for the calling thread; `None` where the system has no free signal or timer.
        #[must_use]
        pub fn new() -> Option<CpuThrottle> {
            let signal = signal()?;
            // The first access to a thread-local may allocate, which the handler must not.
            RESTS.set(0);
            let thread = thread_id();
            // SAFETY: all fields are integers, pointers or arrays of them, for which zero is a valid value.
            let mut event: libc::sigevent = unsafe { zeroed() };
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal;
            event.sigev_notify_thread_id = thread;
            // By this the handler recognises its own timers.
            event.sigev_value = libc::sigval { sival_ptr: without_provenance_mut(thread as usize) };
            // SAFETY: as above.
            let (mut timer, mut set): (libc::timer_t, libc::sigset_t) = unsafe { zeroed() };
            // SAFETY: each pointer is to a live value of the type that the call reads or writes and does not keep. The
            // signal has its handler, so that unblocking it on this thread does not end the process.
            let created = unsafe {
                libc::sigemptyset(&raw mut set);
                libc::sigaddset(&raw mut set, signal);
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, null_mut()) == 0
                    && libc::timer_create(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut event, &raw mut timer) == 0
            };
            created.then_some(CpuThrottle(timer))
        }

        /// Starts a new budget: what the thread has used so far does not count any more.
        pub fn release(&self) {
            let time = |time: Duration| libc::timespec {
                tv_sec: time.as_secs() as libc::time_t,
                tv_nsec: time.subsec_nanos().into(),
            };
            let every = libc::itimerspec { it_interval: time(EVERY), it_value: time(GRACE) };
            // SAFETY: the timer is this value's own, and the pointer is to a live value that the call reads and does
            // not keep. The call fails only for a time out of range.
            let _ = unsafe { libc::timer_settime(self.0, 0, &raw const every, null_mut()) };
            // A signal of the budget before has been handled by now.
            RESTS.set(0);
        }
    }

    impl Drop for CpuThrottle {
        fn drop(&mut self) {
            // SAFETY: the timer is this value's own and is not used afterwards. A signal that is pending finds its
            // handler, which uses nothing of this value.
            let _ = unsafe { libc::timer_delete(self.0) };
        }
    }

    fn thread_id() -> c_int {
        rustix::thread::gettid().as_raw_nonzero().get()
    }

    /// A signal without another handler, with ours installed; chosen once for the process.
    fn signal() -> Option<c_int> {
        static SIGNAL: OnceLock<Option<c_int>> = OnceLock::new();
        *SIGNAL.get_or_init(|| (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev().find(|&signal| install(signal)))
    }

    fn install(signal: c_int) -> bool {
        // SAFETY: all fields are integers, pointers or arrays of them, for which zero is a valid value.
        let mut action: libc::sigaction = unsafe { zeroed() };
        // SAFETY: the pointer is to a live value that the call writes and does not keep.
        if unsafe { libc::sigaction(signal, null(), &raw mut action) } != 0
            || action.sa_sigaction != libc::SIG_DFL
        {
            return false;
        }
        let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = rest;
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART | libc::SA_SIGINFO;
        // SAFETY: the pointer is to a live value that the call reads and does not keep. The handler has the signature
        // that goes with SA_SIGINFO, and calls only what a handler may call.
        unsafe { libc::sigaction(signal, &raw const action, null_mut()) == 0 }
    }

    /// Sleeps, on the thread whose timer has expired. The handler belongs to the whole process and stays installed, so
    /// it returns at once for a signal of any other origin: one that was sent to the process, or another timer's.
    extern "C" fn rest(_signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
        // SAFETY: with SA_SIGINFO the kernel passes a pointer to a live value, whose `si_value` is set for SI_TIMER.
        let own = unsafe {
            (*info).si_code == libc::SI_TIMER && (*info).si_value().sival_ptr.addr() == thread_id() as usize
        };
        if !own {
            return;
        }
        // SAFETY: the pointer is to this thread's own value.
        let errno = unsafe { *libc::__errno_location() };
        let rests = RESTS.try_with(|rests| rests.replace(rests.get().saturating_add(1))).unwrap_or(0);
        let time = FIRST.saturating_mul(1 << rests.min(16)).min(LONGEST);
        let time =
            libc::timespec { tv_sec: time.as_secs() as libc::time_t, tv_nsec: time.subsec_nanos().into() };
        // SAFETY: the pointer is to a live value that the call reads and does not keep; a handler may call it. The
        // interrupted code finds the error number as it was.
        unsafe {
            libc::nanosleep(&raw const time, null_mut());
            *libc::__errno_location() = errno;
        }
    }

    #[cfg(test)]
    mod tests {
        use std::time::Instant;

        use super::*;
        use crate::sched::thread_cpu_time;

        /// Far more processor time than any rest takes to come.
        const LIMIT: Duration = Duration::from_secs(20);

        /// Uses processor time until there were as many rests since the last release.
        fn spin_until_rests(count: u32) {
            let from = thread_cpu_time();
            while RESTS.get() < count {
                assert!(thread_cpu_time() - from < LIMIT, "{} rests", RESTS.get());
            }
        }

        /// Uses processor time; returns how much since `from`, and the rests by then.
        fn spin(processor: Duration, from: Duration) -> (Duration, u32) {
            let start = thread_cpu_time();
            while thread_cpu_time() - start < processor {
                std::hint::spin_loop();
            }
            // The rests are read first: those are not of later processor time.
            let rests = RESTS.get();
            (thread_cpu_time() - from, rests)
        }

        // The kernel looks at the timer at its ticks alone, and a busy machine takes time from this thread whenever it
        // likes. Therefore the test asserts what holds on any machine: the least time, and that a rest comes at all.
        #[test]
        fn a_loop_rests_ever_longer_until_it_is_released() {
            let throttle = CpuThrottle::new().unwrap();
            for _ in 0..2 {
                let from = thread_cpu_time();
                throttle.release();
                let (used, rests) = spin(GRACE / 2, from);
                assert!(rests == 0 || used >= GRACE, "{rests} rests within {used:?}");
            }
            let (began, from) = (Instant::now(), thread_cpu_time());
            throttle.release();
            spin_until_rests(1);
            assert!(thread_cpu_time() - from >= GRACE);
            spin_until_rests(4);
            // 1 + 2 + 4 + 8.
            assert!(began.elapsed() >= FIRST * 15, "{:?}", began.elapsed());
            throttle.release();
            assert_eq!(RESTS.get(), 0);
            drop(throttle);
            spin(GRACE * 2, Duration::ZERO);
            assert_eq!(RESTS.get(), 0);
        }

        #[test]
        fn a_signal_of_another_origin_is_ignored() {
            let throttle = CpuThrottle::new().unwrap();
            throttle.release();
            let signal = signal().unwrap();
            // SAFETY: the thread is the calling one, and the signal has a handler.
            assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), signal) }, 0);
            // SAFETY: as above.
            assert_eq!(unsafe { libc::kill(libc::getpid(), signal) }, 0);
            std::thread::yield_now();
            assert_eq!(RESTS.get(), 0);
        }
    }
}
