//! Bounds on what a file may state. Parsing and one evaluation take a bounded time and a bounded amount of memory.

/// Size of the largest file in bytes.
pub const MAX_FILE_BYTES: usize = 16 << 20;
/// Greatest number of nodes.
pub const MAX_NODES: usize = 1024;
/// Greatest number of initializers.
pub(crate) const MAX_INITIALIZERS: usize = 4096;
/// Greatest number of inputs of the graph, and of inputs and outputs of a node.
pub(crate) const MAX_LIST: usize = 12_288;
/// Greatest number of attributes of a node.
pub(crate) const MAX_ATTRIBUTES: usize = 64;
/// Greatest number of constants that all steps hold together. A constant that two steps hold counts twice.
pub const MAX_PARAMETERS: usize = 4 << 20;
/// Greatest number of values that one evaluation computes, which is the length of its buffer.
pub const MAX_VALUES: usize = 1 << 20;
/// Greatest number of dimensions of a tensor.
pub(crate) const MAX_RANK: usize = 8;
/// Length of the longest name in an error message, in characters.
const MAX_SHOWN: usize = 64;

/// Returns a name of the file for an error message, without control characters and not longer than a limit.
pub(crate) fn shown(name: &str) -> String {
    let printable =
        |character: char| if character.is_control() { char::REPLACEMENT_CHARACTER } else { character };
    name.chars().take(MAX_SHOWN).map(printable).collect()
}
