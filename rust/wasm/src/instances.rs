//! The running modules of one thread.

use std::fmt;
use std::sync::Arc;

use wasmtime::{Global, Instance, Memory, Store, Trap, Val};

use crate::entry::Entry;
use crate::error::Fault;
use crate::library::{Bound, Library};
use crate::module::{Fixed, Module};
use crate::rewrite::{MEMORY, function_name, global_name};

/// The memory in which one thread calls the functions of a library. A clone starts the modules again.
pub struct Instances {
    library: Arc<Library>,
    /// One for each module; `None` if no function of it is used, or if it could not be started.
    running: Vec<Option<Running>>,
    /// One for each function; `None` if it is not used.
    entries: Vec<Option<Entry>>,
    /// The number of faults of each function that have not been taken.
    faults: Box<[u64]>,
    /// Whether one of these numbers is above 0.
    counted: bool,
    /// The functions that have had a fault since [`Instances::take_faulted`], a bit for each.
    faulted: u64,
}

/// An instance of a module.
struct Running {
    store: Store<Fixed>,
    instance: Instance,
    memory: Option<Memory>,
    image: Arc<[u8]>,
    /// The mutable globals with their values before a call.
    globals: Box<[(Global, Val)]>,
    /// Whether a call may have changed memory or globals.
    changed: bool,
}

impl Instances {
    pub(crate) fn new(library: Arc<Library>, used: impl Fn(usize) -> bool) -> Instances {
        let mut running: Vec<Option<Running>> = library.modules.iter().map(|_| None).collect();
        let mut entries = Vec::with_capacity(library.functions.len());
        for (at, function) in library.functions.iter().enumerate() {
            let mut entry = None;
            if used(at) {
                let place = &mut running[function.module];
                if place.is_none() {
                    *place = Running::new(&library.modules[function.module]);
                }
                if let Some(Running { store, instance, .. }) = place {
                    entry = Entry::find(*instance, store, &function_name(function.index), function.arity);
                }
            }
            entries.push(entry);
        }
        let faults = vec![0; library.functions.len()].into();
        Instances { library, running, entries, faults, counted: false, faulted: 0 }
    }

    /// Calls a function. NaN stands for a missing argument or result. It allocates nothing, unless the call faults.
    ///
    /// # Errors
    /// Fails if the call has no result, which is counted.
    pub fn call(&mut self, function: usize, arguments: &[f64]) -> Result<f64, Fault> {
        let result = self.enter(function, arguments);
        if result.is_err() {
            self.count(function);
        }
        result
    }

    fn enter(&mut self, function: usize, arguments: &[f64]) -> Result<f64, Fault> {
        let (Some(Some(entry)), Some(bound)) =
            (self.entries.get(function), self.library.functions.get(function))
        else {
            return Err(Fault::NotStarted);
        };
        let running = self.running[bound.module].as_mut().ok_or(Fault::NotStarted)?;
        let result = running.call(entry, bound, arguments)?;
        if result.is_infinite() { Err(Fault::Infinite) } else { Ok(result) }
    }

    /// Counts a fault of a function whose result the caller cannot use.
    pub fn count(&mut self, function: usize) {
        if let Some(faults) = self.faults.get_mut(function) {
            *faults += 1;
            self.counted = true;
            self.faulted |= 1 << function;
        }
    }

    /// Returns the functions that have had a fault since the last time, a bit for each by its position. The numbers of
    /// [`Instances::take_faults`] stay as they are.
    pub fn take_faulted(&mut self) -> u64 {
        std::mem::take(&mut self.faulted)
    }

    /// Passes the number of faults of each function that had some since the last time.
    pub fn take_faults(&mut self, mut each: impl FnMut(usize, u64)) {
        if !std::mem::take(&mut self.counted) {
            return;
        }
        for (function, faults) in self.faults.iter_mut().enumerate() {
            let faults = std::mem::take(faults);
            if faults > 0 {
                each(function, faults);
            }
        }
    }
}

impl Running {
    fn new(module: &Module) -> Option<Running> {
        let (mut store, instance) = module.start().ok()?;
        let memory = instance.get_memory(&mut store, MEMORY);
        let mut globals = Vec::with_capacity(module.globals.len());
        for index in &module.globals {
            let global = instance.get_global(&mut store, &global_name(*index))?;
            let value = global.get(&mut store);
            globals.push((global, value));
        }
        let image = Arc::clone(&module.image);
        Some(Running { store, instance, memory, image, globals: globals.into(), changed: false })
    }

    #[inline]
    fn call(&mut self, entry: &Entry, bound: &Bound, arguments: &[f64]) -> Result<f64, Fault> {
        if self.changed {
            self.restore();
        }
        // A call that traps leaves its changes.
        self.changed = bound.writes;
        self.store.set_fuel(bound.fuel).map_err(|_| Fault::NotStarted)?;
        entry.call(&mut self.store, arguments)?.map_err(|error| match error.downcast_ref::<Trap>() {
            Some(Trap::OutOfFuel) => Fault::OutOfFuel,
            _ => Fault::Trap,
        })
    }

    /// Gives memory and globals the values that they have before every call. The memory cannot have grown.
    fn restore(&mut self) {
        if let Some(memory) = self.memory {
            let data = memory.data_mut(&mut self.store);
            let length = data.len().min(self.image.len());
            data[..length].copy_from_slice(&self.image[..length]);
        }
        for (global, value) in &self.globals {
            // The value was read from this global, so its type is right.
            let _ = global.set(&mut self.store, *value);
        }
    }
}

impl Clone for Instances {
    fn clone(&self) -> Instances {
        let used: Vec<bool> = self.entries.iter().map(Option::is_some).collect();
        Instances::new(Arc::clone(&self.library), |function| used[function])
    }
}

impl fmt::Debug for Instances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instances").field("functions", &self.entries.len()).finish_non_exhaustive()
    }
}
