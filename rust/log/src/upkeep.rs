//! What is done beside writing: retention, and a look at the free space.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use crate::fs::Env;
use crate::retention::{Pruned, Retention};
use crate::space::Forecast;

/// How the log stands with its disk, as of the latest round.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Upkeep {
    /// Bytes that may still be written; absent where the system does not tell.
    pub free_bytes: Option<u64>,
    /// Bytes by which the free space shrinks per second, over the newest hour.
    pub growth_bytes_per_second: f64,
    /// Time until the disk is full at this growth, seconds; absent while it does not shrink.
    pub full_in_seconds: Option<f64>,
    /// What the latest round of retention did.
    pub retention: Pruned,
    /// Segments removed since the log was opened.
    pub removed_segments: u64,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Why the latest round of retention failed.
    pub error: Option<String>,
}

/// Runs the rounds and keeps their result.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    latest: Mutex<(Upkeep, Forecast)>,
    rounds: AtomicU64,
}

// === impl Keeper ===

impl Keeper {
    /// One round.
    pub(crate) fn round(&self, env: &Env, dir: &std::path::Path, retention: Retention) {
        // Measured even where nothing is ever removed.
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

    /// Rounds that have ended.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Acquire)
    }

    /// The result of the latest round.
    pub(crate) fn latest(&self) -> Upkeep {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}
