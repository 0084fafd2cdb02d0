//! Background work beside writing: retention and the measurement of free space.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use crate::fs::Env;
use crate::retention::{Pruned, Retention};
use crate::space::Forecast;

/// The state of the log's disk at the latest round.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Upkeep {
    /// Number of bytes that can still be written; absent if the system does not report it.
    pub free_bytes: Option<u64>,
    /// Rate at which the free space decreases, in bytes per second, over the last hour.
    pub growth_bytes_per_second: f64,
    /// Time in seconds until the disk is full at this rate; absent if the free space does not decrease.
    pub full_in_seconds: Option<f64>,
    /// The result of the latest round of retention.
    pub retention: Pruned,
    /// Number of segments removed since the log was opened.
    pub removed_segments: u64,
    /// Total size of the removed segments in bytes.
    pub removed_bytes: u64,
    /// The error of the latest round of retention, if it failed.
    pub error: Option<String>,
}

/// Runs rounds of upkeep and stores their latest result.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    latest: Mutex<(Upkeep, Forecast)>,
    rounds: AtomicU64,
}

// === impl Keeper ===

impl Keeper {
    /// Runs one round.
    pub(crate) fn round(&self, env: &Env, dir: &std::path::Path, retention: Retention) {
        // Sizes are measured also if there are no limits.
        let pruned = retention.apply(env, dir, !retention.limits());
        let free = env.fs.free(dir).ok();
        let mut guard = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let (upkeep, forecast) = &mut *guard;
        match pruned {
            Ok(pruned) => {
                upkeep.removed_segments += pruned.removed.len() as u64;
                upkeep.removed_bytes += pruned.removed_bytes;
                upkeep.retention = pruned;
                upkeep.error = None;
            }
            Err(error) => upkeep.error = Some(error.to_string()),
        }
        upkeep.free_bytes = free;
        if let Some(free) = free {
            forecast.note(env.clock.monotonic(), free);
            upkeep.growth_bytes_per_second = forecast.bytes_per_second();
            upkeep.full_in_seconds = forecast.until_full(free).as_ref().map(Duration::as_secs_f64);
        }
        self.rounds.fetch_add(1, Ordering::Release);
    }

    /// Number of completed rounds.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Acquire)
    }

    /// The result of the latest round.
    pub(crate) fn latest(&self) -> Upkeep {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}
