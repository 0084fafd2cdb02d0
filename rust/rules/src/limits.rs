//! The bounds of expressions and rule sets. What exceeds one is refused when rules are compiled.

/// Bytes of one expression.
pub const MAX_SOURCE: usize = 16 * 1024;
/// Depth of one expression: nested parentheses, calls, operators.
pub const MAX_DEPTH: usize = 128;
/// Operators, names and literals of one expression, after macros are expanded.
pub const MAX_NODES: usize = 8_192;
/// Elements of one list literal.
pub const MAX_ELEMENTS: usize = 4_096;
/// Bytes of one string literal or of one string of a vocabulary.
pub const MAX_TEXT: usize = 1_024;
/// Different strings of one program: its literals and the vocabularies of its names.
pub const MAX_TEXTS: usize = 65_536;
/// Names that an environment declares.
pub const MAX_NAMES: usize = 8_192;
/// Registers of one program: names, constants and intermediate results.
pub const MAX_REGISTERS: usize = 65_536;
/// Expressions of one program.
pub const MAX_EXPRESSIONS: usize = 20_000;
/// Rules of one set, with the rows of its tables.
pub const MAX_RULES: usize = 2_000;
/// Bytes that a compiled regular expression may take.
pub const MAX_REGEX_BYTES: usize = 1 << 20;
/// Rules of one set that have a daily budget.
pub const MAX_BUDGETS: usize = 64;
/// Keys of one named list.
pub const MAX_KEYS: usize = 100_000_000;
/// Instructions that the calls of declared functions of one program may execute together, if all of them run.
pub const MAX_CALL_WORK: u64 = 2_000_000;
/// Actions of a catalogue.
pub const MAX_ACTIONS: usize = 65_536;
