//! Faults of evaluations, for tests and benchmarks; compiled with the feature `fault-injection` only.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use scorer_core::budget::OutOfTime;
use scorer_core::bundle::EvalError;
use serde::Deserialize;

use crate::deadline::Deadline;

/// What happens to a request while it is evaluated.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It panics.
    Panic,
    /// Its score is NaN.
    NotFinite,
    /// It meets the test at the barrier twice: once it is there, and once it may go on.
    Meet(Arc<Barrier>),
}

/// Faults of all evaluations.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Slowness {
    /// Every evaluation takes so many times as long; 1: as it is.
    pub slow: f64,
    /// And so much more, microseconds.
    pub add_us: f64,
}

/// Faults by decision id, each strikes every time; and those of all.
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
    /// Puts a fault into the evaluation of the request of this id.
    pub fn set(&self, id: &str, fault: Fault) {
        self.single.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), fault);
    }

    /// Makes every evaluation slower from now on.
    pub fn slow_down(&self, slowness: Slowness) {
        self.slow.store(slowness.slow.to_bits(), Relaxed);
        self.add_us.store(slowness.add_us.to_bits(), Relaxed);
    }

    pub(crate) fn strike(&self, id: &str) -> Result<(), EvalError> {
        let fault = self.single.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
        match fault {
            None => Ok(()),
            #[expect(clippy::panic, reason = "the fault is a panic")]
            Some(Fault::Panic) => panic!("injected"),
            Some(Fault::NotFinite) => Err(EvalError::NotFinite { what: "the score", value: f64::NAN }),
            Some(Fault::Meet(barrier)) => {
                // Other requests go on meanwhile, as they would on another thread.
                tokio::task::block_in_place(|| {
                    barrier.wait();
                    barrier.wait();
                });
                Ok(())
            }
        }
    }

    /// Makes an evaluation that began then take as long as it is to take.
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
