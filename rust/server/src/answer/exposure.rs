//! What the fallback may decide: every static answer is put on the books before it is given.

use std::time::Instant;

use scorer_admission::{Caps, ExposureCaps, Nanos};

use super::evaluate::Failed;
use crate::bundles::Loaded;
use crate::config::{CapsConfig, FallbackConfig};
use crate::metrics::Reason;
use crate::refusal::Refusal;
use crate::state::{Checkpoint, Shared};

/// Amounts are kept in hundredths of the feature's unit.
const PER_UNIT: f64 = 100.0;

/// A checkpoint's exposure and what is answered beyond it.
pub(crate) struct Exposure {
    caps: ExposureCaps,
    amount: Option<String>,
    beyond: Option<FallbackConfig>,
}

// === impl Exposure ===

impl Exposure {
    pub(crate) fn new(config: &CapsConfig) -> Exposure {
        let amount = |limit: Option<f64>| limit.map_or(u64::MAX, |limit| (limit * PER_UNIT).round() as u64);
        let caps = Caps {
            window: Nanos((config.window_seconds * 1e9) as u64),
            max_count: config.max_count.unwrap_or(u64::MAX),
            max_total: amount(config.max_total_amount),
            max_single: amount(config.max_single_amount),
        };
        Exposure {
            caps: ExposureCaps::new(caps, None),
            amount: config.amount_feature.clone(),
            beyond: config.answer().cloned(),
        }
    }

    /// The answer beyond the caps; without one, a refusal.
    pub(crate) fn beyond(&self) -> Option<&FallbackConfig> {
        self.beyond.as_ref()
    }

    /// Unknown where the feature is missing or no amount: the core then assumes the largest.
    fn amount_of(&self, loaded: &Loaded, row: &[f32]) -> Option<u64> {
        let Some(feature) = &self.amount else { return Some(0) };
        let amount = f64::from(*row.get(loaded.bundle.schema().index_of(feature)?)?);
        (amount.is_finite() && amount >= 0.0).then(|| (amount * PER_UNIT).round() as u64)
    }
}

/// A static answer, and why it is given.
pub(crate) type Static<'a> = (&'a FallbackConfig, Reason);

/// The answer to give without the model: the fallback, or beyond its caps the stricter one. `allowed` says
/// whether the request allows an answer.
///
/// # Errors
/// There is none to give.
pub(crate) fn take<'a>(
    shared: &Shared,
    checkpoint: &'a Checkpoint,
    loaded: &Loaded,
    row: &[f32],
    caller: u64,
    failed: Failed,
    allowed: impl Fn(&FallbackConfig) -> bool,
) -> Result<Static<'a>, Refusal> {
    let Some(fallback) = checkpoint.fallback.as_ref().filter(|it| allowed(it)) else {
        return Err(failed.refusal(shared, checkpoint));
    };
    let Some(exposure) = &checkpoint.exposure else { return Ok((fallback, failed.reason)) };
    let now = shared.admission.nanos(Instant::now());
    match exposure.caps.reserve(now, caller, exposure.amount_of(loaded, row)) {
        Ok(()) => Ok((fallback, failed.reason)),
        Err(cap) => {
            shared.metrics.checkpoint(checkpoint.index).sla.capped(cap);
            let beyond = exposure.beyond.as_ref().filter(|it| allowed(it));
            beyond.map(|answer| (answer, Reason::Cap)).ok_or(Refusal::Capped)
        }
    }
}
