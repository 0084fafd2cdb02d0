//! A module that has been checked and compiled.

use std::fmt;
use std::sync::Arc;

use wasmtime::{Config, Engine, Instance, OptLevel, ResourceLimiter, Store, Strategy};

use crate::check::{Exported, check};
use crate::error::ModuleError;
use crate::limits::{MAX_FUEL, RESTORED_BYTES, STACK_BYTES, shown};
use crate::rewrite::{MEMORY, rewrite};

/// A compiled module. It is immutable; bundles with the same file share it in an `Arc`.
pub struct Module {
    engine: Engine,
    compiled: wasmtime::Module,
    pub(crate) functions: Vec<Exported>,
    /// The mutable globals.
    pub(crate) globals: Vec<u32>,
    /// The content of the memory before a call; empty without memory.
    pub(crate) image: Arc<[u8]>,
}

impl Module {
    /// Checks and compiles a module. The time and memory that this takes are bounded by [`limits`](crate::limits).
    ///
    /// # Errors
    /// Fails if the bytes are not a module that functions of a bundle may have; see the crate's documentation.
    pub fn compile(bytes: &[u8]) -> Result<Module, ModuleError> {
        let contents = check(bytes)?;
        let rewritten = rewrite(bytes, &contents);
        let fail = |error: wasmtime::Error| ModuleError::Start(shown(&error.to_string()));
        let engine = Engine::new(&config()).map_err(fail)?;
        let compiled = wasmtime::Module::from_binary(&engine, &rewritten).map_err(fail)?;
        let mut module = Module {
            engine,
            compiled,
            functions: contents.functions,
            globals: contents.globals,
            image: Arc::default(),
        };
        let (mut store, instance) = module.start().map_err(fail)?;
        if let Some(memory) = instance.get_memory(&mut store, MEMORY) {
            module.image = memory.data(&store).into();
        }
        Ok(module)
    }

    /// The names of the exported functions with the number of their parameters; functions that are not of doubles are
    /// left out.
    pub fn functions(&self) -> impl Iterator<Item = (&str, usize)> {
        self.functions.iter().filter_map(|one| Some((one.name.as_str(), *one.arity.as_ref().ok()?)))
    }

    /// Bytes of the machine code and of the memory's image.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let range = self.compiled.image_range();
        (range.end as usize).saturating_sub(range.start as usize) + self.image.len()
    }

    /// Starts an instance. No code of the module runs.
    pub(crate) fn start(&self) -> wasmtime::Result<(Store<Fixed>, Instance)> {
        let mut store = Store::new(&self.engine, Fixed { started: false });
        store.limiter(|fixed| fixed);
        store.set_fuel(MAX_FUEL)?;
        let instance = Instance::new(&mut store, &self.compiled, &[])?;
        store.data_mut().started = true;
        Ok((store, instance))
    }

    /// The work of restoring the memory, in instructions.
    pub(crate) fn restoring(&self) -> u64 {
        self.image.len() as u64 / RESTORED_BYTES + self.globals.len() as u64
    }
}

/// Keeps the memory as large as the module states it: `memory.grow` returns -1 once the module has started.
pub(crate) struct Fixed {
    started: bool,
}

impl ResourceLimiter for Fixed {
    fn memory_growing(&mut self, _: usize, _: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(!self.started)
    }

    fn table_growing(&mut self, _: usize, _: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(false)
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").field("functions", &self.functions).finish_non_exhaustive()
    }
}

/// The settings of the compiler. Code does its own checks of memory and divisors, so that the process gets no signal
/// handlers: Python has its own.
fn config() -> Config {
    let mut config = Config::new();
    config
        .strategy(Strategy::Cranelift)
        .cranelift_opt_level(OptLevel::Speed)
        .cranelift_nan_canonicalization(true)
        .consume_fuel(true)
        .signals_based_traps(false)
        .max_wasm_stack(STACK_BYTES)
        .memory_reservation(0)
        .memory_reservation_for_growth(0)
        .memory_guard_size(0)
        .guard_before_linear_memory(false)
        .memory_init_cow(false)
        .native_unwind_info(false)
        .generate_address_map(false)
        .wasm_simd(false)
        .wasm_relaxed_simd(false)
        .wasm_multi_value(false)
        .wasm_tail_call(false)
        .wasm_multi_memory(false)
        .wasm_memory64(false)
        .wasm_extended_const(false);
    config
}
