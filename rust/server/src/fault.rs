//! Faults for tests and benchmarks; compiled with the feature `fault-injection` only.
//!
//! Single requests: [`crate::Server::inject`]. A whole server, as `scorer-server` built with the feature: the
//! environment variable `SCORER_FAULTS` names a JSON file that is read again ten times a second, such as
//! `{"slow": 10, "add_us": 500}`: every evaluation takes `slow` times as long and `add_us` microseconds more,
//! at the cost of the processor, and stops as a slow model would when its time is over. Faults of observe lanes are in
//! it as `{"lanes": {"fraud.checkout/cr-000017": "loop"}}`, see [`LaneFault`]. No file: no fault.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use scorer_core::budget::OutOfTime;
use scorer_core::bundle::EvalError;
use serde::Deserialize;

use crate::answer::budget::Until;

/// Names the file of the whole server's faults.
const FILE: &str = "SCORER_FAULTS";

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

/// What happens to every evaluation of an observe lane.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum LaneFault {
    /// It panics.
    Panic,
    /// Its score is NaN.
    NotFinite,
    /// It does not end until the fault is taken out.
    Loop,
    /// It takes so much longer, microseconds of the processor.
    Slow(u64),
}

/// Faults by checkpoint and lane.
#[derive(Debug, Default)]
pub(crate) struct LaneFaults(Mutex<HashMap<String, LaneFault>>);

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    slow: f64,
    add_us: f64,
    lanes: HashMap<String, LaneFault>,
}

/// Faults by decision id, each strikes every time; and those of all.
#[derive(Debug)]
pub(crate) struct Faults {
    single: Mutex<HashMap<String, Fault>>,
    slow: AtomicU64,
    add_us: AtomicU64,
    file: Option<PathBuf>,
    pub(crate) lanes: Arc<LaneFaults>,
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
            file: std::env::var_os(FILE).map(PathBuf::from),
            lanes: Arc::default(),
        }
    }
}

impl Default for File {
    fn default() -> File {
        let Slowness { slow, add_us } = Slowness::default();
        File { slow, add_us, lanes: HashMap::new() }
    }
}

// === impl LaneFaults ===

impl LaneFaults {
    pub(crate) fn set(&self, checkpoint: &str, lane: &str, fault: Option<LaneFault>) {
        let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = format!("{checkpoint}/{lane}");
        match fault {
            Some(fault) => faults.insert(key, fault),
            None => faults.remove(&key),
        };
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
                // The lock is asked now and then: this is to burn the processor, not to hold others up.
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

// === impl Faults ===

impl Faults {
    pub(crate) fn set(&self, id: &str, fault: Fault) {
        self.single.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), fault);
    }

    pub(crate) fn slow_down(&self, slowness: Slowness) {
        self.slow.store(slowness.slow.to_bits(), Relaxed);
        self.add_us.store(slowness.add_us.to_bits(), Relaxed);
    }

    /// Reads the file again.
    pub(crate) fn tick(&self) {
        let Some(file) = &self.file else { return };
        let text = std::fs::read_to_string(file).unwrap_or_default();
        // A file that is being written is read next time.
        if let Ok(File { slow, add_us, lanes }) =
            if text.is_empty() { Ok(File::default()) } else { serde_json::from_str(&text) }
        {
            self.slow_down(Slowness { slow, add_us });
            *self.lanes.0.lock().unwrap_or_else(PoisonError::into_inner) = lanes;
        }
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
    pub(crate) fn delay(&self, began: Instant, until: &Until<'_>) -> Result<(), EvalError> {
        let (slow, add_us) =
            (f64::from_bits(self.slow.load(Relaxed)), f64::from_bits(self.add_us.load(Relaxed)));
        if slow <= 1.0 && add_us <= 0.0 {
            return Ok(());
        }
        let end =
            began + began.elapsed().mul_f64(slow.max(1.0)) + Duration::from_secs_f64(add_us.max(0.0) / 1e6);
        while Instant::now() < end {
            if until.is_over() {
                return Err(OutOfTime.into());
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}
