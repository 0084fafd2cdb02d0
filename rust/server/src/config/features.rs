//! The configuration of computed features.

use std::path::PathBuf;

use scorer_features_redis::RedisConfig;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Greatest number of feature sets.
const SETS: usize = 64;

/// The feature sets of a server, and the store of their state.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct FeatureConfig {
    /// The definitions of the sets in their canonical form.
    pub sets: Vec<Value>,
    /// Directory of the journal and the snapshots. Without it the state is lost when the server stops.
    #[serde(default)]
    pub directory: Option<PathBuf>,
    /// Greatest memory of the state in bytes.
    #[serde(default = "default_memory_bytes")]
    pub memory_bytes: u64,
    /// Redis or Valkey, if the state is there and not in this process.
    #[serde(default)]
    pub redis: Option<RedisConfig>,
    /// Share of the SLA that loading the features of a request may take, above 0 and at most 1.
    #[serde(default = "default_sla_share")]
    pub sla_share: f64,
}

// === impl FeatureConfig ===

impl FeatureConfig {
    /// Appends a message for each invalid setting to `wrong`.
    pub(super) fn check(&self, wrong: &mut Vec<String>) {
        if self.sets.is_empty() || self.sets.len() > SETS {
            let got = self.sets.len();
            wrong.push(format!("\"features\": {got} sets; configure 1 to {SETS}, or remove \"features\""));
        }
        if let Some(redis) = &self.redis {
            redis.check(wrong);
            if self.directory.is_some() {
                wrong.push(
                    "\"features\": directory is for the store in this process and the source is redis; remove it"
                        .to_owned(),
                );
            }
        }
        if !(1 << 20..=1 << 40).contains(&self.memory_bytes) {
            wrong.push(format!("\"features\": memory_bytes is {}; use 1 MiB to 1 TiB", self.memory_bytes));
        }
        if !(self.sla_share > 0.0 && self.sla_share <= 1.0) {
            let share = self.sla_share;
            wrong.push(format!("\"features\": sla_share is {share}; use a number above 0, at most 1"));
        }
    }
}

fn default_memory_bytes() -> u64 {
    512 << 20
}

fn default_sla_share() -> f64 {
    0.25
}
