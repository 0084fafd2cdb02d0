//! The settings of checkpoints and of the decision log.

mod caps;
mod outcomes;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use scorer_core::explain::MAX_REASONS;
use serde::{Deserialize, Serialize};

pub use caps::{CapsConfig, Mode, OnCap, Refuse};
pub use outcomes::{OutcomeSettings, ProofRule, RewardRange, Unproven};

/// The longest checkpoint name, in bytes. Names are metric labels and file keys.
const MAX_NAME: usize = 64;

/// The settings of the decision log.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct LogSettings {
    /// Directory of the segments. Only one process may write to it at a time.
    pub dir: PathBuf,
    /// Size in bytes at which a segment is closed.
    #[serde(default = "default_segment_bytes")]
    pub segment_bytes: u64,
    /// Longest time between two calls of `fdatasync`, in milliseconds.
    #[serde(default = "default_sync_ms")]
    pub sync_ms: u64,
    /// Limit on waiting records of durability `async`. Beyond it, records are dropped and counted.
    #[serde(default = "default_queue")]
    pub queue: usize,
    /// Limit on bytes that are written and not yet on stable storage. Beyond it, the log is unavailable.
    #[serde(default = "default_unsynced_bytes")]
    pub unsynced_bytes: usize,
    /// Age in seconds. Segments whose newest record is older are removed.
    #[serde(default)]
    pub retain_seconds: Option<u64>,
    /// Total size in bytes. The oldest segments are removed while all segments together are larger.
    #[serde(default)]
    pub retain_bytes: Option<u64>,
    /// Whether records that are not marked as shipped may be removed too.
    #[serde(default)]
    pub prune_unshipped: bool,
    /// Time in seconds. The log warns if the disk is expected to be full earlier.
    #[serde(default = "default_warn_full_seconds")]
    pub warn_full_seconds: u64,
}

/// The settings of one checkpoint.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct CheckpointConfig {
    /// The kind of its answers.
    pub kind: Kind,
    /// The SLA: the limit on the 99th percentile of the latency of answers, in milliseconds.
    #[serde(default = "default_p99_ms")]
    pub p99_ms: f64,
    /// Tier, from 0, which is shed last, to 3, which is shed first. `ScoreBatch` is shed first at any checkpoint.
    #[serde(default)]
    pub tier: u8,
    /// Treatment of requests that cannot meet the SLA.
    #[serde(default)]
    pub mode: Mode,
    /// When a decision counts as recorded. Default: `written` for actions, `async` for scores.
    #[serde(default)]
    pub durability: Option<DurabilityClass>,
    /// Greatest number of rows in one `ScoreBatch`.
    #[serde(default = "default_max_batch_rows")]
    pub max_batch_rows: u32,
    /// The answer if the model cannot answer.
    #[serde(default)]
    pub fallback: Option<FallbackConfig>,
    /// Exposure caps of the fallback.
    #[serde(default)]
    pub caps: Option<CapsConfig>,
    /// Range of the values of outcomes by kind. Values of other kinds may be any finite number.
    #[serde(default)]
    pub outcomes: BTreeMap<String, RewardRange>,
    /// Number of reasons that are computed and recorded for every answer, whether or not the request asks for them.
    #[serde(default)]
    pub reasons: u32,
    /// Limit on a candidate's evaluation time at warm-up, relative to the live bundle's.
    #[serde(default = "default_warmup_max_ratio")]
    pub warmup_max_ratio: f64,
}

/// Kind of a checkpoint's answers, which determines its bundles and methods.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A score, by `Score` and `ScoreBatch`.
    Score,
    /// An action, by `SelectAction`.
    Action,
}

/// The state that a decision's record must have before the reply is sent.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum DurabilityClass {
    /// The record is queued in memory.
    Async,
    /// The record is in the page cache, where it survives a kill of the process.
    Written,
    /// The record is on stable storage, where it survives a loss of power.
    Sync,
}

/// The static answer of a checkpoint.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(untagged)]
pub enum FallbackConfig {
    /// For kind `score`.
    Score {
        /// Label of the answer.
        decision: String,
        /// Score of the answer, 0 to 1.
        score: f64,
    },
    /// For kind `action`.
    Action {
        /// Id of an action of every bundle served at the checkpoint.
        action: String,
    },
}

// === impl CheckpointConfig ===

impl CheckpointConfig {
    /// The configured durability, or the kind's default.
    #[must_use]
    pub fn durability(&self) -> DurabilityClass {
        self.durability.unwrap_or(match self.kind {
            Kind::Score => DurabilityClass::Async,
            Kind::Action => DurabilityClass::Written,
        })
    }

    /// The SLA as a duration.
    #[must_use]
    pub fn sla(&self) -> Duration {
        Duration::from_secs_f64(self.p99_ms / 1e3)
    }

    /// Appends a message for each invalid setting of the checkpoint `name` to `wrong`.
    pub fn check(&self, name: &str, wrong: &mut Vec<String>) {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(plain) {
            wrong.push(format!(
                "checkpoint {name:?}: a name is 1 to {MAX_NAME} letters, digits, '.', '_' or '-'"
            ));
        }
        if !(self.p99_ms.is_finite() && self.p99_ms > 0.0 && self.p99_ms <= 60_000.0) {
            wrong.push(format!(
                "checkpoint {name:?}: \"p99_ms\" is {}; use a number above 0, up to 60000",
                self.p99_ms
            ));
        }
        if self.warmup_max_ratio.is_nan() || self.warmup_max_ratio <= 0.0 {
            wrong.push(format!(
                "checkpoint {name:?}: \"warmup_max_ratio\" is {}; use a number above 0",
                self.warmup_max_ratio
            ));
        }
        if self.reasons as usize > MAX_REASONS {
            wrong.push(format!(
                "checkpoint {name:?}: \"reasons\" is {}; use at most {MAX_REASONS}",
                self.reasons
            ));
        }
        if self.max_batch_rows == 0 {
            wrong.push(format!("checkpoint {name:?}: \"max_batch_rows\" is 0; use at least 1"));
        }
        if self.tier > 3 {
            wrong.push(format!("checkpoint {name:?}: \"tier\" is {}; use 0 to 3", self.tier));
        }
        if let Some(fallback) = &self.fallback {
            fallback.check("the fallback", name, self.kind, wrong);
        }
        for (kind, range) in &self.outcomes {
            range.check(name, kind, wrong);
        }
        if let Some(caps) = &self.caps {
            caps.check(name, self.kind, self.fallback.is_some(), wrong);
        }
    }
}

// === impl Kind ===

impl Kind {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Score => "score",
            Kind::Action => "action",
        }
    }
}

fn default_segment_bytes() -> u64 {
    64 << 20
}

fn default_sync_ms() -> u64 {
    50
}

fn default_queue() -> usize {
    65_536
}

fn default_unsynced_bytes() -> usize {
    32 << 20
}

fn default_warn_full_seconds() -> u64 {
    12 * 3600
}

fn default_p99_ms() -> f64 {
    10.0
}

fn default_warmup_max_ratio() -> f64 {
    3.0
}

fn default_max_batch_rows() -> u32 {
    1000
}
