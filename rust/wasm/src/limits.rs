//! Bounds on modules and calls. What exceeds one is refused before the module is compiled.

/// Size of the largest module in bytes.
pub const MAX_MODULE_BYTES: usize = 128 * 1024;
/// Bytes of all function bodies of a module together.
pub const MAX_CODE_BYTES: usize = 64 * 1024;
/// Bytes of one function body.
pub const MAX_BODY_BYTES: usize = 16 * 1024;
/// Greatest number of functions of a module.
pub const MAX_MODULE_FUNCTIONS: usize = 256;
/// Greatest number of types, of exports, of globals and of data segments of a module, each.
pub const MAX_ENTRIES: usize = 256;
/// Greatest number of parameters and locals of one function together.
pub const MAX_LOCALS: usize = 256;
/// Greatest depth of nested blocks of a function.
pub const MAX_NESTING: usize = 128;
/// Greatest number of functions that are active at a time.
pub const MAX_CALL_DEPTH: usize = 32;
/// Greatest memory of a module in pages of 64 KiB.
pub const MAX_PAGES: u64 = 16;
/// Greatest number of arguments of a function that a bundle uses.
pub const MAX_ARGUMENTS: usize = 16;
/// Greatest number of functions that a bundle uses.
pub const MAX_FUNCTIONS: usize = 64;
/// Greatest number of modules of a bundle.
pub const MAX_MODULES: usize = 16;
/// Instructions that one call may execute, unless the bundle states another number.
pub const DEFAULT_FUEL: u64 = 10_000;
/// Greatest number of instructions that a bundle may allow for one call.
pub const MAX_FUEL: u64 = 100_000;

/// Bytes of the machine's stack that a call may use.
pub(crate) const STACK_BYTES: usize = 256 * 1024;
/// Bytes of memory whose restoration counts as one instruction.
pub(crate) const RESTORED_BYTES: u64 = 16;
/// Length of the longest name in an error message, in characters.
const MAX_SHOWN: usize = 64;

/// Returns a name of a module for an error message, without control characters and not longer than a limit.
pub(crate) fn shown(name: &str) -> String {
    let printable =
        |character: char| if character.is_control() { char::REPLACEMENT_CHARACTER } else { character };
    name.chars().take(MAX_SHOWN).map(printable).collect()
}
