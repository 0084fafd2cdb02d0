//! Scheduling of threads: classes, time slices and processor time.
//!
//! Every function changes or reads only the calling thread.
//!
//! | thread | function | effect |
//! |---|---|---|
//! | reads, writes and watches deadlines | [`set_short_slice`] | runs within microseconds of being woken |
//! | evaluates | none | the default class |
//! | loads and frees bundles | [`lower_priority`] | batch class, nice 19: a release still makes progress on a busy machine |
//! | observes | [`set_idle_priority`] | runs when no other thread needs the processor |

use std::time::Duration;

/// The shortest time slice that Linux grants, in nanoseconds.
#[cfg(target_os = "linux")]
const SHORT_SLICE: u64 = 100_000;

/// Requests a short time slice and exact timers.
///
/// Reading, writing and watching deadlines take microseconds; an evaluation takes longer. If they share a core, the
/// kernel by default lets an evaluating thread finish its slice of some milliseconds before it runs a thread that has
/// just been woken, and a finished reply waits that long to be written. A thread that requests short slices runs
/// immediately, and its share of the processor stays the same. Kernels before Linux 6.12 ignore the request.
pub fn set_short_slice() {
    #[cfg(target_os = "linux")]
    {
        request_short_slice();
        // If this call fails, sleeps end up to 50 µs late. That is too little to report an error.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    }
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "system calls without a wrapper in libc")]
fn request_short_slice() {
    // SAFETY: all fields are integers, for which zero is a valid value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of_val(&attributes) as u32;
    // SAFETY: the kernel fills a structure of the size that is passed; thread 0 is the calling one.
    if unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) } != 0 {
        return;
    }
    // A scheduling class that an operator has chosen is not changed.
    if attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    // This also clears SCHED_FLAG_RESET_ON_FORK, which matters only for real-time classes and negative nice values.
    attributes.sched_flags = 0;
    attributes.sched_runtime = SHORT_SLICE;
    // SAFETY: as above; the kernel reads the structure. If it refuses, the slice stays as it was.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// Lowers the thread's priority to nice 19 in the batch class.
///
/// A thread that answers requests has 68 times its weight and preempts it immediately. The idle class would be lower
/// still, but a release must make progress on a saturated machine, because it may be the remedy.
pub fn lower_priority() {
    #[cfg(target_os = "linux")]
    {
        // On Linux a nice value belongs to one thread, and no process id means the calling thread.
        let _ = rustix::process::setpriority_process(None, 19);
        let _ = set_class(libc::SCHED_BATCH);
    }
}

/// Moves the thread to the idle class: it runs when no other thread needs the processor, and is preempted immediately.
/// If the system refuses the class, the thread gets nice 19.
pub fn set_idle_priority() {
    #[cfg(target_os = "linux")]
    if !set_class(libc::SCHED_IDLE) {
        let _ = rustix::process::setpriority_process(None, 19);
    }
}

/// Returns whether the kernel accepted the class.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the scheduling class of one thread has no safe interface")]
fn set_class(class: libc::c_int) -> bool {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the pointer is to a live value of the type that the call reads and does not keep; thread 0 is the
    // calling one.
    unsafe { libc::sched_setscheduler(0, class, &raw const parameter) == 0 }
}

/// Returns the processor time that the thread has used. It does not advance while other threads run.
#[must_use]
pub fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "reads the kernel's settings of the thread")]
mod tests {
    use std::thread;

    use super::*;

    fn nice() -> i32 {
        rustix::process::getpriority_process(None).unwrap()
    }

    fn class() -> i32 {
        // SAFETY: the call takes no pointer; thread 0 is the calling one.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn a_short_slice_keeps_the_class() {
        let read = || {
            // SAFETY: all fields are integers.
            let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
            let size = size_of_val(&attributes) as u32;
            // SAFETY: the kernel fills a structure of the size that is passed.
            let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
            assert_eq!(result, 0);
            (attributes.sched_policy, attributes.sched_nice, attributes.sched_runtime)
        };
        let before = read();
        set_short_slice();
        let after = read();
        assert_eq!((before.0, before.1), (after.0, after.1));
        // A kernel without support for slices leaves the value unchanged.
        assert!(after.2 == SHORT_SLICE || after.2 == before.2, "{}", after.2);
        assert_eq!(rustix::thread::current_timer_slack().unwrap(), 1);
    }

    #[test]
    fn only_the_calling_thread_is_lowered() {
        let before = (nice(), class());
        let lowered = thread::spawn(|| {
            lower_priority();
            (nice(), class())
        });
        assert_eq!(lowered.join().unwrap(), (19, libc::SCHED_BATCH));
        let idle = thread::spawn(|| {
            set_idle_priority();
            class()
        });
        assert_eq!(idle.join().unwrap(), libc::SCHED_IDLE);
        assert_eq!((nice(), class()), before);
    }
}
