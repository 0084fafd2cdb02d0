//! Counters of computed features, by feature set.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use super::Histogram;
use crate::defaulted::Defaulted;

/// Counters of the reads of one feature set.
#[derive(Debug)]
pub struct FeatureCounters {
    /// Number of reads.
    pub loads: AtomicU64,
    /// Durations of reads.
    pub times: Histogram,
    /// Number of values that requests stated although the source has the feature.
    pub stated: AtomicU64,
    /// Number of reads in which the source had never seen an entity.
    pub unknown_entities: AtomicU64,
    defaulted: [AtomicU64; Defaulted::ALL.len()],
}

/// The counters of all feature sets that a loaded bundle has used, by name.
#[derive(Debug, Default)]
pub struct FeatureSetCounters(Mutex<BTreeMap<String, Arc<FeatureCounters>>>);

// === impl FeatureCounters ===

impl FeatureCounters {
    fn new() -> FeatureCounters {
        FeatureCounters {
            loads: AtomicU64::new(0),
            times: Histogram::of_reads(),
            stated: AtomicU64::new(0),
            unknown_entities: AtomicU64::new(0),
            defaulted: Default::default(),
        }
    }

    /// Counts a row with defaults.
    pub(crate) fn defaulted(&self, reason: Defaulted) {
        self.defaulted[reason as usize].fetch_add(1, Relaxed);
    }

    /// The numbers of rows with defaults, by reason.
    pub fn by_reason(&self) -> impl Iterator<Item = (Defaulted, u64)> {
        Defaulted::ALL.into_iter().map(|reason| (reason, self.defaulted[reason as usize].load(Relaxed)))
    }
}

// === impl FeatureSetCounters ===

impl FeatureSetCounters {
    /// Returns the counters of a set, which are created at the first call.
    pub(crate) fn of(&self, set: &str) -> Arc<FeatureCounters> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(set.to_owned()).or_insert_with(|| Arc::new(FeatureCounters::new())))
    }

    /// All sets with their counters.
    #[must_use]
    pub fn all(&self) -> Vec<(String, Arc<FeatureCounters>)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(set, counters)| (set.clone(), Arc::clone(counters))).collect()
    }
}
