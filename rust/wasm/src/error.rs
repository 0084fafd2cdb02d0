//! The reasons why a module is refused, and why a call has no result.

/// The reason why a module is refused. Each message is one line that names the item, the rule and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModuleError {
    /// The bytes are not a WebAssembly module of the allowed features.
    #[error(
        "is not a valid module: {0}; restore the file, or build it for wasm32-unknown-unknown with -C target-cpu=mvp"
    )]
    Invalid(String),
    /// The module exceeds a limit.
    #[error("has {got} {what}, at most {limit}; make the module smaller")]
    Limit {
        /// What there are too many of.
        what: &'static str,
        /// The number of the module.
        got: usize,
        /// The greatest allowed number.
        limit: usize,
    },
    /// The module has a part that functions of a bundle cannot have.
    #[error("has {what}; {remedy}")]
    Part {
        /// The part.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The module cannot be started, for example because its data does not fit into its memory.
    #[error("cannot be started: {0}; correct the module")]
    Start(String),
}

/// The reason why functions cannot be put together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// The module does not export the function.
    #[error(
        "the module exports no function {export:?}, but {known}; correct the name or export the function"
    )]
    Export {
        /// The name.
        export: String,
        /// The functions that it exports.
        known: String,
    },
    /// The function has another type.
    #[error(
        "function {export:?} has the type {found}, not 1 to 16 parameters f64 and one result f64; change its signature"
    )]
    Signature {
        /// The name.
        export: String,
        /// The type of the function.
        found: String,
    },
    /// The fuel is outside the limits.
    #[error("fuel {got} is not from 1 to {limit}; change it")]
    Fuel {
        /// The number that is stated.
        got: u64,
        /// The greatest allowed number.
        limit: u64,
    },
    /// There are too many functions.
    #[error("there are {got} functions, at most {limit} are allowed; remove some")]
    Functions {
        /// The number of functions.
        got: usize,
        /// The greatest allowed number.
        limit: usize,
    },
    /// A function belongs to no module.
    #[error("there is no module {0}; add it")]
    Module(usize),
}

/// The reason why a call has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The call executed as many instructions as it may.
    #[error("out of fuel")]
    OutOfFuel,
    /// The code stopped itself, such as by a division by zero, an access outside its memory, or a panic.
    #[error("trap")]
    Trap,
    /// The result is infinite.
    #[error("infinite result")]
    Infinite,
    /// The module could not be started on this thread.
    #[error("not started")]
    NotStarted,
    /// The number of arguments is not that of the function.
    #[error("wrong number of arguments")]
    Arguments,
}
