//! The exposure of fallbacks. Every static answer is counted against the checkpoint's caps before it is given.

use scorer_admission::{Caps, ExposureCaps, Nanos};

use crate::bundles::Loaded;
use crate::config::{CapsConfig, FallbackConfig};

/// Amounts are stored in hundredths of the feature's unit.
const PER_UNIT: f64 = 100.0;

/// A checkpoint's exposure caps and the answer beyond them.
pub(crate) struct Exposure {
    pub(crate) caps: ExposureCaps,
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
            caps: ExposureCaps::new(caps),
            amount: config.amount_feature.clone(),
            beyond: config.answer().cloned(),
        }
    }

    /// The answer beyond the caps; `None` if requests are then rejected.
    pub(crate) fn beyond(&self) -> Option<&FallbackConfig> {
        self.beyond.as_ref()
    }

    /// Returns the amount of a request; `None` if the feature is missing or not a valid amount. The caps then assume
    /// the greatest amount.
    pub(crate) fn amount_of(&self, loaded: &Loaded, row: &[f32]) -> Option<u64> {
        let Some(feature) = &self.amount else { return Some(0) };
        let amount = f64::from(*row.get(loaded.bundle.schema().index_of(feature)?)?);
        (amount.is_finite() && amount >= 0.0).then(|| (amount * PER_UNIT).round() as u64)
    }
}
