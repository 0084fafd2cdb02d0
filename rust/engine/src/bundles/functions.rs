//! Counters of the functions of a loaded bundle.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use scorer_core::bundle::{Bundle, CustomFunctions, EvalScratch};

/// The faults of each function of a bundle, which has at most 64.
#[derive(Debug)]
pub struct FunctionCounters {
    names: Box<[String]>,
    faults: Box<[AtomicU64]>,
}

impl FunctionCounters {
    pub(super) fn new(bundle: &Bundle) -> FunctionCounters {
        let entries = bundle.functions().map_or(&[][..], CustomFunctions::entries);
        FunctionCounters {
            names: entries.iter().map(|entry| entry.name.clone()).collect(),
            faults: entries.iter().map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Adds the faults since the last time. It costs a comparison if there were none.
    pub fn take(&self, eval: &mut EvalScratch) {
        eval.take_function_faults(|function, count| {
            if let Some(faults) = self.faults.get(function) {
                faults.fetch_add(count, Relaxed);
            }
        });
    }

    /// The number of faults of each function, in the order of the bundle.
    pub fn faults(&self) -> impl Iterator<Item = (&str, u64)> {
        self.names.iter().zip(&self.faults).map(|(name, faults)| (name.as_str(), faults.load(Relaxed)))
    }
}
