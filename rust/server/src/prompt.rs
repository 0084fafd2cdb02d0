//! How soon a thread runs once it has something to do.
//!
//! Reading, writing and watching deadlines take microseconds, evaluating takes longer, and where a machine has no core
//! to spare all of them share one. Left alone, the kernel lets an evaluating thread finish its turn, some milliseconds,
//! before another that has just been woken: a reply that is ready waits that long to be written. A thread that asks
//! for short turns instead gets them at once, and no more of them: its share of the processor stays the same.

/// The shortest turn that Linux grants, nanoseconds.
#[cfg(target_os = "linux")]
const TURN: u64 = 100_000;

/// This thread does little at a time and has to do it at once. Where the kernel knows no turns (before Linux 6.12, or
/// another system), nothing changes.
pub(crate) fn promptly() {
    #[cfg(target_os = "linux")]
    {
        short_turns();
        // Sleeps end when they are to end, and not up to 50 µs later. Without it they are late: nothing to report.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    }
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "system calls that the standard library has no names for")]
fn short_turns() {
    // SAFETY: all of its fields are integers.
    let mut turns: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of_val(&turns) as u32;
    // SAFETY: this thread, and a structure of the size that is given, which the kernel fills.
    if unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut turns, size, 0) } != 0 {
        return;
    }
    // An operator's own choice of a scheduling class stays.
    if turns.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    turns.sched_flags = 0;
    turns.sched_runtime = TURN;
    // SAFETY: as above; the kernel reads. Where it refuses, turns stay as they were.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const turns, 0) };
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    #[expect(unsafe_code, reason = "reads back what the kernel has")]
    fn a_thread_gets_the_turns_that_it_asks_for_and_keeps_its_class() {
        let read = || {
            // SAFETY: as above.
            let mut turns: libc::sched_attr = unsafe { std::mem::zeroed() };
            let size = size_of_val(&turns) as u32;
            // SAFETY: as above.
            assert_eq!(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut turns, size, 0) }, 0);
            (turns.sched_policy, turns.sched_nice, turns.sched_runtime)
        };
        let before = read();
        promptly();
        let after = read();
        assert_eq!((before.0, before.1), (after.0, after.1));
        // 0 or unchanged: a kernel that does not know them.
        assert!(after.2 == TURN || after.2 == before.2, "{}", after.2);
        assert_eq!(rustix::thread::current_timer_slack().unwrap(), 1);
    }
}
