//! Modules for tests, from the text format.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test uses a part of this file, and a fault of it ends the test"
)]

use std::sync::Arc;

use scorer_wasm::limits::DEFAULT_FUEL;
use scorer_wasm::{Function, Instances, Library, Module, ModuleError};

/// Compiles a module from its text.
pub(crate) fn module(text: &str) -> Result<Module, ModuleError> {
    Module::compile(&wat::parse_str(text).unwrap())
}

/// A function `f` of a module, ready to be called.
pub(crate) fn ready(text: &str, fuel: u64) -> Instances {
    library(text, &["f"], fuel).start(|_| true)
}

/// Functions of a module.
pub(crate) fn library(text: &str, exports: &[&str], fuel: u64) -> Arc<Library> {
    let functions: Vec<Function> =
        exports.iter().map(|export| Function { module: 0, export: (*export).to_owned(), fuel }).collect();
    Arc::new(Library::new(vec![Arc::new(module(text).unwrap())], &functions).unwrap())
}

/// Calls the function `f` of a module once.
pub(crate) fn call(text: &str, arguments: &[f64]) -> Result<f64, scorer_wasm::Fault> {
    ready(text, DEFAULT_FUEL).call(0, arguments)
}

/// A module with one function of one double and this body.
pub(crate) fn of_body(body: &str) -> String {
    format!("(module (func (export \"f\") (param $x f64) (result f64) {body}))")
}
