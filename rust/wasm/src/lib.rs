//! Functions that a team writes itself, as WebAssembly modules in a bundle.
//!
//! A function takes 1 to 16 doubles and returns one. NaN is a missing value. [`Module::compile`] checks the bytes of a
//! file against [`limits`] before anything is compiled: a module has no imports, no start function, no recursion, no
//! indirect calls, and a fixed memory. [`Library`] puts the functions of several modules together, and [`Instances`] is
//! the memory in which one thread calls them: a call allocates nothing unless it faults, takes a bounded number of
//! instructions, and depends on its arguments only, with the same bits on every machine.

#![forbid(unsafe_code)]

mod check;
mod entry;
mod error;
mod graph;
mod instances;
mod library;
pub mod limits;
mod module;
mod rewrite;

pub use error::{Fault, LibraryError, ModuleError};
pub use instances::Instances;
pub use library::{Function, Library};
pub use module::Module;
