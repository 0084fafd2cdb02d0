//! Protection of the process's memory against core dumps and debuggers.

use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Keeps the memory of this process out of core dumps, including those that the kernel pipes to a program, and prevents
/// debuggers of the same user from attaching. Programs that this process starts inherit the size limit of 0 bytes.
///
/// # Errors
/// Fails if the kernel refuses the limit or the setting.
pub fn forbid_core_dumps() -> io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}
