//! The functions of a loaded bundle: their names, the counters of their faults, and the faults of an answer.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use scorer_core::bundle::{Bundle, CustomFunctions, EvalScratch, FunctionSet};

use super::Shape;

/// Returns the names of the functions of a bundle, in its order.
pub(super) fn names(bundle: &Bundle) -> Vec<String> {
    let entries = bundle.functions().map_or(&[][..], CustomFunctions::entries);
    entries.iter().map(|entry| entry.name.clone()).collect()
}

/// The faults of each function of a bundle, which has at most 64.
#[derive(Debug)]
pub struct FunctionCounters {
    faults: Box<[AtomicU64]>,
}

impl FunctionCounters {
    pub(super) fn new(functions: usize) -> FunctionCounters {
        FunctionCounters { faults: (0..functions).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Adds the faults since the last time, and returns their functions. It costs a comparison if there were none.
    pub fn take(&self, eval: &mut EvalScratch) -> FunctionSet {
        let mut faulted = 0;
        eval.take_function_faults(|function, count| {
            if let Some(faults) = self.faults.get(function) {
                faults.fetch_add(count, Relaxed);
                faulted |= 1 << function;
            }
        });
        FunctionSet::of_bits(faulted)
    }

    /// The number of faults of each function, in the order of the bundle.
    pub fn faults(&self) -> impl Iterator<Item = u64> {
        self.faults.iter().map(|faults| faults.load(Relaxed))
    }
}

/// The functions that had no result in an answer, and their names. Cached answers keep it, so it contains no bundle.
#[derive(Clone, Default)]
pub struct FaultedFunctions(Option<(Arc<Shape>, FunctionSet)>);

impl FaultedFunctions {
    pub(crate) fn of(shape: &Arc<Shape>, faulted: FunctionSet) -> FaultedFunctions {
        FaultedFunctions((!faulted.is_empty()).then(|| (Arc::clone(shape), faulted)))
    }

    /// The names of the functions, in the order of the bundle.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|(shape, faulted)| shape.faulted(*faulted))
    }

    /// The functions.
    #[must_use]
    pub fn set(&self) -> FunctionSet {
        self.0.as_ref().map_or_else(FunctionSet::default, |(_, faulted)| *faulted)
    }
}

impl std::fmt::Debug for FaultedFunctions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
