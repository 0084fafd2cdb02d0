//! What the threads that bring bundles in and let them go ask of the system.

#![expect(
    unsafe_code,
    reason = "one thread's scheduling class and the allocator's free memory have no safe interface"
)]

/// Gives the calling thread, and no other, the least claim to a processor: nice 19 in the batch class.
///
/// A thread that answers requests has 68 times its weight and takes the processor from it at once. It is not
/// the idle class: on a saturated machine a release must still come through, and it may be the remedy. Best
/// effort: where the system refuses, the work is done at normal priority.
#[cfg(target_os = "linux")]
pub(crate) fn yield_to_requests() {
    // On Linux both calls concern one thread, and 0 names the calling one.
    let _ = rustix::process::setpriority_process(None, 19);
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the pointer is to a live value of the type that the call reads and does not keep; thread 0 is the
    // calling one. Its only other effect is the error that is ignored here.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameter) };
}

/// Elsewhere the priority stays as it is.
#[cfg(not(target_os = "linux"))]
pub(crate) fn yield_to_requests() {}

/// Gives memory that is free back to the system. glibc keeps free blocks that lie below living ones, and every
/// swap would leave some behind.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn give_back_memory() {
    // SAFETY: it takes no pointer, touches free memory alone, and does so under the allocator's own locks.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators do so by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn give_back_memory() {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_the_calling_thread_is_lowered() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let before = nice();
        let lowered = std::thread::spawn(move || {
            yield_to_requests();
            nice()
        });
        assert_eq!((lowered.join().unwrap(), nice()), (19, before));
    }
}
