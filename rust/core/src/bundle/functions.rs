//! `functions.json`: functions that a team wrote itself, in WebAssembly modules of the bundle.
//!
//! A step of a transform and the conditions of rules call them by name. A call that fails has no result: the value is
//! missing, and the fault is counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use scorer_rules::{Calls, Environment, FunctionSpec, Functions};
use scorer_wasm::limits::{DEFAULT_FUEL, MAX_FUNCTIONS, MAX_MODULES};
use scorer_wasm::{Function, Instances, Library, Module};
use serde::{Deserialize, Serialize};

use super::{Bundle, BundleError, Digest, EvalScratch};

/// Name of the file.
pub(super) const FUNCTIONS: &str = "functions.json";
/// Size of the largest file in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Length of the longest name of a function or parameter, in bytes.
const MAX_NAME: usize = 64;

/// The contents of `functions.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionsFile {
    /// The functions.
    pub functions: Vec<FunctionEntry>,
}

/// One function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionEntry {
    /// The name by which steps and rules call it.
    pub name: String,
    /// Its module, `function-01.wasm` to `function-16.wasm`. Several functions may have the same one.
    pub file: String,
    /// The name by which the module exports it; that of the function if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<String>,
    /// The names of its parameters.
    pub parameters: Vec<String>,
    /// The number of instructions that a call may execute.
    #[serde(default = "default_fuel")]
    pub fuel: u64,
}

/// A set of functions of a bundle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FunctionSet(u64);

impl FunctionSet {
    /// The functions whose bits are set: bit 0 for the first one of [`CustomFunctions::entries`].
    #[must_use]
    pub fn of_bits(bits: u64) -> FunctionSet {
        FunctionSet(bits)
    }

    /// A bit for each function.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Whether there is no function.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The functions of this set and of another one.
    #[must_use]
    pub fn or(self, other: FunctionSet) -> FunctionSet {
        FunctionSet(self.0 | other.0)
    }

    /// The positions of the functions, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_FUNCTIONS).filter(move |at| self.0 >> at & 1 == 1)
    }
}

fn default_fuel() -> u64 {
    DEFAULT_FUEL
}

/// The functions of a bundle.
#[derive(Debug)]
pub struct CustomFunctions {
    entries: Vec<FunctionEntry>,
    library: Arc<Library>,
    /// SHA-256 of the file of each module.
    digests: Vec<Digest>,
}

impl CustomFunctions {
    /// Compiles the modules of `files`, each with the SHA-256 of its file, and checks every function. A module that one
    /// of the `known` bundles has is shared with it.
    pub(super) fn parse(
        bytes: &[u8],
        mut files: BTreeMap<String, (Digest, Vec<u8>)>,
        known: &[&Bundle],
    ) -> Result<CustomFunctions, BundleError> {
        if bytes.len() > MAX_BYTES {
            let reason = format!("{} bytes, at most {MAX_BYTES} are allowed", bytes.len());
            return Err(BundleError::Json { file: FUNCTIONS, reason });
        }
        let file: FunctionsFile = serde_json::from_slice(bytes)
            .map_err(|error| BundleError::Json { file: FUNCTIONS, reason: error.to_string() })?;
        let count = file.functions.len();
        if count == 0 || count > MAX_FUNCTIONS {
            return Err(BundleError::Functions(format!(
                "{count} functions, 1 to {MAX_FUNCTIONS} are allowed"
            )));
        }
        let mut names: Vec<&str> = Vec::new();
        let (mut digests, mut modules) = (Vec::new(), Vec::new());
        let mut functions = Vec::with_capacity(count);
        for entry in &file.functions {
            let module = match names.iter().position(|name| *name == entry.file) {
                Some(module) => module,
                None => {
                    let (digest, bytes) =
                        files.remove(&entry.file).ok_or_else(|| BundleError::NotListed {
                            file: entry.file.clone(),
                            why: "functions.json names it as a module",
                        })?;
                    let shared = known.iter().find_map(|bundle| bundle.functions.as_ref()?.module(&digest));
                    modules.push(match shared {
                        Some(module) => Arc::clone(module),
                        None => Arc::new(Module::compile(&bytes).map_err(|source| BundleError::Module {
                            file: entry.file.clone(),
                            source: Box::new(source),
                        })?),
                    });
                    digests.push(digest);
                    names.push(&entry.file);
                    names.len() - 1
                }
            };
            let export = entry.export.as_ref().unwrap_or(&entry.name).clone();
            functions.push(Function { module, export, fuel: entry.fuel });
        }
        if let Some(file) = files.into_keys().next() {
            return Err(BundleError::Surplus { file, why: "no function of functions.json is in it" });
        }
        let of = |at: usize, reason: &dyn std::fmt::Display| {
            let name = file.functions.get(at).map_or("", |entry| entry.name.as_str());
            BundleError::Functions(format!("function {name:?}: {reason}"))
        };
        let library = Library::new(modules, &functions).map_err(|(at, error)| of(at, &error))?;
        for (at, entry) in file.functions.iter().enumerate() {
            check_names(entry).map_err(|reason| of(at, &reason))?;
            let (stated, takes) = (entry.parameters.len(), library.arguments(at).unwrap_or(0));
            if stated != takes {
                let reason = format!(
                    "{stated} parameters are stated, the module's function has {takes}; correct the list"
                );
                return Err(of(at, &reason));
            }
        }
        let functions = CustomFunctions { entries: file.functions, library: Arc::new(library), digests };
        functions
            .declare(&mut Environment::new())
            .map_err(|error| BundleError::Functions(error.to_string()))?;
        Ok(functions)
    }

    /// Declares the functions for rules.
    pub(super) fn declare(&self, environment: &mut Environment) -> Result<(), scorer_rules::DeclareError> {
        let specs = self.entries.iter().enumerate().map(|(at, entry)| FunctionSpec {
            name: entry.name.clone(),
            operands: entry.parameters.clone(),
            work: self.library.work(at),
        });
        environment.declare_functions(specs.collect(), Arc::new(Linked(Arc::clone(&self.library))))
    }

    /// The functions, in the order of the file.
    #[must_use]
    pub fn entries(&self) -> &[FunctionEntry] {
        &self.entries
    }

    /// The position of a function.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.name == name)
    }

    /// Makes the memory in which one thread calls the functions for which `used` is true.
    pub(super) fn start(&self, used: &[bool]) -> Instances {
        self.library.start(|function| used.get(function).copied().unwrap_or(false))
    }

    #[cfg(test)]
    pub(super) fn library(&self) -> &Library {
        &self.library
    }

    fn module(&self, digest: &Digest) -> Option<&Arc<Module>> {
        let at = self.digests.iter().position(|known| known == digest)?;
        self.library.modules().get(at)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.library.heap_bytes()
    }
}

fn check_names(entry: &FunctionEntry) -> Result<(), String> {
    let printable =
        |name: &str| !name.is_empty() && name.len() <= MAX_NAME && !name.chars().any(char::is_control);
    if !printable(&entry.name) {
        return Err(format!("the name is not 1 to {MAX_NAME} printable bytes; rename it"));
    }
    for (at, parameter) in entry.parameters.iter().enumerate() {
        if !printable(parameter) || entry.parameters[..at].contains(parameter) {
            return Err(format!(
                "parameter {parameter:?} is not 1 to {MAX_NAME} printable bytes or is there twice; rename it"
            ));
        }
    }
    Ok(())
}

/// Whether `name` is that of a module: `function-01.wasm` to `function-16.wasm`.
pub(super) fn is_module_file(name: &str) -> bool {
    (1..=MAX_MODULES).any(|number| name == format!("function-{number:02}.wasm"))
}

/// The functions as rules call them.
#[derive(Debug)]
struct Linked(Arc<Library>);

impl Functions for Linked {
    fn start(&self, used: &[bool]) -> Box<dyn Calls> {
        Box::new(Started(self.0.start(|function| used.get(function).copied().unwrap_or(false))))
    }
}

#[derive(Debug)]
struct Started(Instances);

impl Calls for Started {
    fn call(&mut self, function: usize, operands: &[f64]) -> Option<f64> {
        self.0.call(function, operands).ok()
    }

    fn again(&self) -> Box<dyn Calls> {
        Box::new(Started(self.0.clone()))
    }

    fn take_faults(&mut self, each: &mut dyn FnMut(usize, u64)) {
        self.0.take_faults(each);
    }
}

impl Bundle {
    /// The team's own functions, if the bundle has some.
    #[must_use]
    pub fn functions(&self) -> Option<&CustomFunctions> {
        self.functions.as_ref()
    }
}

impl EvalScratch {
    /// The functions that had no result in the rules that were evaluated last.
    #[must_use]
    pub fn faulted_in_rules(&self) -> FunctionSet {
        FunctionSet(self.ruling.as_ref().map_or(0, scorer_rules::Decision::failed_functions))
    }

    /// Passes the number of faults of each function of [`Bundle::functions`] since the last time, in transforms and
    /// rules. It costs a comparison if there were none.
    pub fn take_function_faults(&mut self, mut each: impl FnMut(usize, u64)) {
        if let Some(functions) = &mut self.buffers.functions {
            functions.take_faults(&mut each);
        }
        if let Some(ruling) = &mut self.ruling {
            ruling.values().take_faults(&mut each);
        }
    }
}
