//! The functions of a bundle.

use std::sync::Arc;

use crate::error::LibraryError;
use crate::instances::Instances;
use crate::limits::{MAX_FUEL, MAX_FUNCTIONS, shown};
use crate::module::Module;

/// A function of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The position of its module.
    pub module: usize,
    /// The name by which the module exports it.
    pub export: String,
    /// The number of instructions that a call may execute.
    pub fuel: u64,
}

/// The functions of a bundle with their modules.
#[derive(Debug)]
pub struct Library {
    pub(crate) modules: Vec<Arc<Module>>,
    pub(crate) functions: Vec<Bound>,
}

/// A function with what its module states about it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) module: usize,
    /// Its index in the module.
    pub(crate) index: u32,
    pub(crate) arity: usize,
    pub(crate) writes: bool,
    pub(crate) fuel: u64,
}

impl Library {
    /// Puts functions together. A function is called by its position.
    ///
    /// # Errors
    /// Returns the position of the first function that is wrong, with the reason.
    pub fn new(modules: Vec<Arc<Module>>, functions: &[Function]) -> Result<Library, (usize, LibraryError)> {
        if functions.len() > MAX_FUNCTIONS {
            let error = LibraryError::Functions { got: functions.len(), limit: MAX_FUNCTIONS };
            return Err((MAX_FUNCTIONS, error));
        }
        let bound = functions.iter().enumerate().map(|(at, function)| {
            let module = modules.get(function.module).ok_or(LibraryError::Module(function.module));
            module.and_then(|module| bind(module, function)).map_err(|error| (at, error))
        });
        let functions = bound.collect::<Result<_, _>>()?;
        Ok(Library { modules, functions })
    }

    /// The number of arguments of a function; `None` if there is no such function.
    #[must_use]
    pub fn arguments(&self, function: usize) -> Option<usize> {
        self.functions.get(function).map(|function| function.arity)
    }

    /// An upper bound on the work of a call in instructions: its fuel, and the restoration of what calls changed.
    #[must_use]
    pub fn work(&self, function: usize) -> u64 {
        let Some(bound) = self.functions.get(function) else { return 0 };
        let writes = self.functions.iter().any(|other| other.module == bound.module && other.writes);
        bound.fuel + if writes { self.modules[bound.module].restoring() } else { 0 }
    }

    /// The modules in their order.
    #[must_use]
    pub fn modules(&self) -> &[Arc<Module>] {
        &self.modules
    }

    /// Makes the memory in which one thread calls the functions for which `used` is true.
    #[must_use]
    pub fn start(self: &Arc<Library>, used: impl Fn(usize) -> bool) -> Instances {
        Instances::new(Arc::clone(self), used)
    }

    /// Bytes of the modules.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.modules.iter().map(|module| module.heap_bytes()).sum()
    }
}

fn bind(module: &Module, function: &Function) -> Result<Bound, LibraryError> {
    if function.fuel == 0 || function.fuel > MAX_FUEL {
        return Err(LibraryError::Fuel { got: function.fuel, limit: MAX_FUEL });
    }
    let export = shown(&function.export);
    let Some(found) = module.functions.iter().find(|exported| exported.name == function.export) else {
        let known: Vec<String> = module.functions.iter().take(10).map(|one| shown(&one.name)).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(LibraryError::Export { export, known });
    };
    let arity = match &found.arity {
        Ok(arity) => *arity,
        Err(found) => return Err(LibraryError::Signature { export, found: found.clone() }),
    };
    Ok(Bound {
        module: function.module,
        index: found.index,
        arity,
        writes: found.writes,
        fuel: function.fuel,
    })
}
