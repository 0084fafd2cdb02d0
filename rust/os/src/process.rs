//! What the kernel may do with this process's memory after a crash.

use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Keeps the memory of this process out of core dumps, also where the kernel pipes them to a program, and out of reach
/// of debuggers of the same user. Programs that this process starts inherit the limit of 0 bytes.
///
/// # Errors
/// The kernel refuses.
pub fn forbid_core_dumps() -> io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}
