//! The allocator's free memory, and cache lines that will be needed.

use std::mem::size_of;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks the processor to load the lines of a value into its caches, and does not wait for them.
pub fn prefetch<T>(value: &T) {
    prefetch_lines::<1>(std::ptr::from_ref(value).cast());
    if size_of::<T>() > LINE {
        prefetch_lines::<1>(std::ptr::from_ref(value).cast::<u8>().wrapping_add(size_of::<T>() - 1));
    }
}

/// Asks the processor to load the first lines of a block into its caches, and does not wait for them. The length is not
/// considered, so that the processor need not know it; lines behind the block do no harm.
pub fn prefetch_block<const LINES: usize>(block: &[u8]) {
    prefetch_lines::<LINES>(block.as_ptr());
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "prefetching has no safe interface")]
fn prefetch_lines<const LINES: usize>(from: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for line in 0..LINES {
        // SAFETY: the instruction reads nothing that the program sees, and does not fault at any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(line * LINE).cast()) };
    }
}

#[cfg(target_arch = "aarch64")]
#[expect(unsafe_code, reason = "prefetching has no safe interface")]
fn prefetch_lines<const LINES: usize>(from: *const u8) {
    for line in 0..LINES {
        let at = from.wrapping_add(line * LINE);
        // SAFETY: the instruction reads nothing that the program sees, and does not fault at any address.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly))
        };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn prefetch_lines<const LINES: usize>(_: *const u8) {}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines behind a block may belong to nobody.
    #[test]
    fn lines_of_any_address_may_be_prefetched() {
        prefetch(&());
        prefetch(&[7_u8; 3 * LINE]);
        prefetch_block::<4>(&[]);
        let block = vec![7; 5];
        prefetch_block::<1024>(&block);
        assert_eq!(block, [7; 5]);
        // No page is at the end of the addresses.
        prefetch_lines::<4>(std::ptr::without_provenance(usize::MAX - LINE));
    }
}
