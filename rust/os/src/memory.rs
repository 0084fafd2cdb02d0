//! The allocator's free memory.

/// Returns the allocator's free memory to the system. glibc keeps free blocks that lie below blocks in use, so the
/// process would otherwise grow with every bundle that is replaced.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "malloc_trim has no safe interface")]
pub fn release_free_memory() {
    // SAFETY: the call takes no pointer and touches free memory only, under the allocator's own locks.
    unsafe { libc::malloc_trim(0) };
}

/// Does nothing, because other allocators return free memory without a call.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn release_free_memory() {}
