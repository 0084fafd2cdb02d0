//! Faults of observe lanes for tests and benchmarks, compiled only with the feature `fault-injection`.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use scorer_core::bundle::EvalError;
use serde::Deserialize;

/// A fault of every evaluation of an observe lane.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum LaneFault {
    /// The evaluation panics.
    Panic,
    /// The score is NaN.
    NotFinite,
    /// The evaluation does not end until the fault is removed.
    Loop,
    /// The evaluation takes this much more CPU time, in microseconds.
    Slow(u64),
}

/// Faults by checkpoint and lane.
#[derive(Debug, Default)]
pub struct LaneFaults(Mutex<HashMap<String, LaneFault>>);

// === impl LaneFaults ===

impl LaneFaults {
    /// Sets the fault of a lane, or removes it.
    pub fn set(&self, checkpoint: &str, lane: &str, fault: Option<LaneFault>) {
        let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = format!("{checkpoint}/{lane}");
        match fault {
            Some(fault) => faults.insert(key, fault),
            None => faults.remove(&key),
        };
    }

    /// Replaces all faults; keys are `checkpoint/lane`.
    pub fn replace(&self, faults: HashMap<String, LaneFault>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    fn of(&self, key: &str) -> Option<LaneFault> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    pub(crate) fn strike(&self, checkpoint: &str, lane: &str) -> Result<(), EvalError> {
        let key = format!("{checkpoint}/{lane}");
        match self.of(&key) {
            None => Ok(()),
            #[expect(clippy::panic, reason = "the fault is a panic")]
            Some(LaneFault::Panic) => panic!("injected"),
            Some(LaneFault::NotFinite) => Err(EvalError::NotFinite { what: "the score", value: f64::NAN }),
            Some(LaneFault::Loop) => {
                let mut rounds = 0_u64;
                // The lock is taken rarely, so that the loop uses the processor without blocking other threads.
                while !rounds.is_multiple_of(1 << 16) || self.of(&key) == Some(LaneFault::Loop) {
                    rounds += 1;
                    std::hint::spin_loop();
                }
                Ok(())
            }
            Some(LaneFault::Slow(micros)) => {
                let end = Instant::now() + Duration::from_micros(micros);
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
                Ok(())
            }
        }
    }
}
