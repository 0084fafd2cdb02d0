//! Faults of evaluations for tests and benchmarks, compiled only with the feature `fault-injection`.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use scorer_core::budget::OutOfTime;
use scorer_core::bundle::EvalError;
use serde::Deserialize;

use crate::deadline::Deadline;

/// The id by which a fault applies to every explanation on demand. No decision has it.
pub const EXPLANATION_FAULT: &str = "\u{0}explanation";

/// A fault of the evaluation of one request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The evaluation panics.
    Panic,
    /// The evaluation of the rules panics.
    RulesPanic,
    /// The score is NaN.
    NotFinite,
    /// The evaluation waits at the barrier twice: first when it has started, then until the test lets it continue.
    Meet(Arc<Barrier>),
}

/// Faults of all evaluations.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Slowness {
    /// Factor of the time of every evaluation; 1 for no change.
    pub slow: f64,
    /// Additional time of every evaluation, in microseconds.
    pub add_us: f64,
}

/// Faults by decision id, which apply to every evaluation of the id, and the slowness of all evaluations.
#[derive(Debug)]
pub struct Faults {
    single: Mutex<HashMap<String, Fault>>,
    slow: AtomicU64,
    add_us: AtomicU64,
}

impl Default for Slowness {
    fn default() -> Slowness {
        Slowness { slow: 1.0, add_us: 0.0 }
    }
}

impl Default for Faults {
    fn default() -> Faults {
        let none = Slowness::default();
        Faults {
            single: Mutex::default(),
            slow: AtomicU64::new(none.slow.to_bits()),
            add_us: AtomicU64::new(none.add_us.to_bits()),
        }
    }
}

// === impl Faults ===

impl Faults {
    /// Sets the fault of the evaluations of this decision id.
    pub fn set(&self, id: &str, fault: Fault) {
        self.single.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), fault);
    }

    /// Removes the fault of this id.
    pub fn clear(&self, id: &str) {
        self.single.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// Makes every evaluation slower from now on.
    pub fn slow_down(&self, slowness: Slowness) {
        self.slow.store(slowness.slow.to_bits(), Relaxed);
        self.add_us.store(slowness.add_us.to_bits(), Relaxed);
    }

    /// Applies the fault of the id, or that of the id at this bundle, `<id>@<digest>`.
    pub(crate) fn strike(&self, id: &str, bundle: &str) -> Result<(), EvalError> {
        let fault = {
            let single = self.single.lock().unwrap_or_else(PoisonError::into_inner);
            let at_bundle = || single.get(&format!("{id}@{bundle}"));
            single.get(id).or_else(|| if single.is_empty() { None } else { at_bundle() }).cloned()
        };
        match fault {
            None | Some(Fault::RulesPanic) => Ok(()),
            #[expect(clippy::panic, reason = "the fault is a panic")]
            Some(Fault::Panic) => panic!("injected"),
            Some(Fault::NotFinite) => Err(EvalError::NotFinite { what: "the score", value: f64::NAN }),
            Some(Fault::Meet(barrier)) => {
                // `block_in_place` lets other requests of this thread continue.
                tokio::task::block_in_place(|| {
                    barrier.wait();
                    barrier.wait();
                });
                Ok(())
            }
        }
    }

    #[expect(clippy::panic, reason = "the fault is a panic")]
    pub(crate) fn strike_rules(&self, id: &str) {
        let fault = self.single.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
        if matches!(fault, Some(Fault::RulesPanic)) {
            panic!("injected");
        }
    }

    /// Delays an evaluation that started at `began` until its slower time has passed.
    pub(crate) fn delay(&self, began: Instant, deadline: &Deadline<'_>) -> Result<(), EvalError> {
        let (slow, add_us) =
            (f64::from_bits(self.slow.load(Relaxed)), f64::from_bits(self.add_us.load(Relaxed)));
        if slow <= 1.0 && add_us <= 0.0 {
            return Ok(());
        }
        let end =
            began + began.elapsed().mul_f64(slow.max(1.0)) + Duration::from_secs_f64(add_us.max(0.0) / 1e6);
        while Instant::now() < end {
            if deadline.is_over() {
                return Err(OutOfTime.into());
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}
