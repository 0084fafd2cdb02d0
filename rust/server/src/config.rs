//! What the server is told once, at start.

mod shadow;
mod sla;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::ServerError;
pub use shadow::{Role, ShadowPoolConfig};
pub use sla::{CapsConfig, Mode, OnCap, Refuse};

/// The longest checkpoint name, in bytes. Names are metric labels and file keys.
const MAX_NAME: usize = 64;

/// Everything the data plane needs to start, as the control plane gives it in JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Whether it answers, or observes for those that do.
    #[serde(default)]
    pub role: Role,
    /// TCP address, `host:port`; port 0 lets the system choose.
    #[serde(default)]
    pub listen: Option<String>,
    /// Path of the Unix socket; created with mode 0600.
    #[serde(default)]
    pub uds: Option<PathBuf>,
    /// Address of the HTTP listener for `/metrics`, `/ready` and `/live`.
    #[serde(default)]
    pub metrics_listen: Option<String>,
    /// Threads that answer requests.
    #[serde(default = "default_threads")]
    pub threads: usize,
    /// Longest request message, bytes.
    #[serde(default = "default_max_message_bytes")]
    pub max_message_bytes: usize,
    /// Connections held at once; one above is closed at accept.
    #[serde(default = "default_max_connections")]
    pub max_connections: usize,
    /// Requests in flight over all connections; one above is RESOURCE_EXHAUSTED.
    #[serde(default = "default_max_inflight")]
    pub max_inflight: usize,
    /// Bytes that the process may hold when a bundle has been loaded. Default: 85 % of the container's limit or
    /// the machine's memory.
    #[serde(default)]
    pub memory_budget_bytes: Option<u64>,
    /// What an observe lane's thread may use of one core, above 0, to 1.
    #[serde(default = "default_observe_cpu")]
    pub observe_cpu: f64,
    /// Requests that may wait for an observe lane; above, they are dropped and counted.
    #[serde(default = "default_observe_queue")]
    pub observe_queue: usize,
    /// The decision log; absent: nothing is recorded and exploration is off.
    #[serde(default)]
    pub log: Option<LogSettings>,
    /// Where a live server sends what the shadow pool observes; absent: there is none.
    #[serde(default)]
    pub shadow_pool: Option<ShadowPoolConfig>,
    /// The decision points served, by name.
    pub checkpoints: BTreeMap<String, CheckpointConfig>,
}

/// Where and how decisions are recorded.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LogSettings {
    /// Directory of the segments; one writer at a time.
    pub dir: PathBuf,
    /// A segment is closed at this size, bytes.
    #[serde(default = "default_segment_bytes")]
    pub segment_bytes: u64,
    /// Longest time between two `fdatasync`, milliseconds.
    #[serde(default = "default_sync_ms")]
    pub sync_ms: u64,
    /// Records of durability `async` that may wait; above, they are dropped and counted.
    #[serde(default = "default_queue")]
    pub queue: usize,
}

/// One decision point.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointConfig {
    /// What it answers.
    pub kind: Kind,
    /// Its promise, milliseconds.
    #[serde(default = "default_p99_ms")]
    pub p99_ms: f64,
    /// How much it matters: 0 is shed last, 3 first. `ScoreBatch` is shed first at any checkpoint.
    #[serde(default)]
    pub tier: u8,
    /// What happens to requests that cannot be on time.
    #[serde(default)]
    pub mode: Mode,
    /// When a decision counts as recorded. Default: `written` for actions, `async` for scores.
    #[serde(default)]
    pub durability: Option<DurabilityClass>,
    /// Most rows in one `ScoreBatch`.
    #[serde(default = "default_max_batch_rows")]
    pub max_batch_rows: u32,
    /// The answer when the model cannot give one.
    #[serde(default)]
    pub fallback: Option<FallbackConfig>,
    /// How much may be decided by the fallback.
    #[serde(default)]
    pub caps: Option<CapsConfig>,
    /// A candidate whose warm-up takes more than so many times the live bundle's is refused.
    #[serde(default = "default_warmup_max_ratio")]
    pub warmup_max_ratio: f64,
}

/// What a checkpoint answers, and hence which bundles and methods fit it.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// How likely: `Score` and `ScoreBatch`.
    Score,
    /// Which action: `SelectAction`.
    Action,
}

/// When a decision's record lets the reply go.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum DurabilityClass {
    /// Queued in memory.
    Async,
    /// In the page cache: survives a kill of the process.
    Written,
    /// On the device: survives loss of power.
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

// === impl ServerConfig ===

impl ServerConfig {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// [`ServerError::Config`] names the key, the rule and the remedy.
    pub fn from_json(json: &str) -> Result<ServerConfig, ServerError> {
        let config: ServerConfig =
            serde_json::from_str(json).map_err(|error| ServerError::Config(error.to_string()))?;
        config.check()?;
        Ok(config)
    }

    /// Checks what the types cannot.
    ///
    /// # Errors
    /// All mistakes at once, separated by `; `.
    pub fn check(&self) -> Result<(), ServerError> {
        let mut wrong = Vec::new();
        if self.listen.is_none() && self.uds.is_none() {
            wrong.push("neither \"listen\" nor \"uds\" is set; give at least one address".to_owned());
        }
        for (key, value, low, high) in [
            ("threads", self.threads, 1, 256),
            ("max_message_bytes", self.max_message_bytes, 1024, 64 << 20),
            ("max_connections", self.max_connections, 1, 1 << 20),
            ("max_inflight", self.max_inflight, 1, 1 << 20),
            ("observe_queue", self.observe_queue, 1, 1 << 16),
        ] {
            if !(low..=high).contains(&value) {
                wrong.push(format!("\"{key}\" is {value}; use {low} to {high}"));
            }
        }
        if !(self.observe_cpu > 0.0 && self.observe_cpu <= 1.0) {
            wrong.push(format!("\"observe_cpu\" is {}; use a number above 0, at most 1", self.observe_cpu));
        }
        if self.checkpoints.is_empty() {
            wrong.push("\"checkpoints\" is empty; configure at least one".to_owned());
        }
        if let Some(pool) = &self.shadow_pool {
            pool.check(self.role, &mut wrong);
        }
        for (name, checkpoint) in &self.checkpoints {
            checkpoint.check(name, &mut wrong);
        }
        if wrong.is_empty() { Ok(()) } else { Err(ServerError::Config(wrong.join("; "))) }
    }
}

// === impl CheckpointConfig ===

impl CheckpointConfig {
    /// The durability in force: what is configured, or the kind's default.
    #[must_use]
    pub fn durability(&self) -> DurabilityClass {
        self.durability.unwrap_or(match self.kind {
            Kind::Score => DurabilityClass::Async,
            Kind::Action => DurabilityClass::Written,
        })
    }

    /// The promise as a duration.
    #[must_use]
    pub fn budget(&self) -> Duration {
        Duration::from_secs_f64(self.p99_ms / 1e3)
    }

    fn check(&self, name: &str, wrong: &mut Vec<String>) {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(plain) {
            wrong.push(format!(
                "checkpoint {name:?}: a name is 1 to {MAX_NAME} letters, digits, '.', '_' or '-'"
            ));
        }
        if name == crate::health::LIVENESS {
            wrong.push(format!("checkpoint {name:?}: health checks use this name; choose another"));
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
        if self.max_batch_rows == 0 {
            wrong.push(format!("checkpoint {name:?}: \"max_batch_rows\" is 0; use at least 1"));
        }
        if self.tier > 3 {
            wrong.push(format!("checkpoint {name:?}: \"tier\" is {}; use 0 to 3", self.tier));
        }
        if let Some(fallback) = &self.fallback {
            fallback.check("the fallback", name, self.kind, wrong);
        }
        if let Some(caps) = &self.caps {
            caps.check(name, self.kind, self.fallback.is_some(), wrong);
        }
    }
}

// === impl Kind ===

impl Kind {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Score => "score",
            Kind::Action => "action",
        }
    }
}

fn default_threads() -> usize {
    1
}

fn default_max_message_bytes() -> usize {
    1 << 20
}

fn default_max_connections() -> usize {
    1024
}

fn default_max_inflight() -> usize {
    2048
}

fn default_observe_cpu() -> f64 {
    0.25
}

fn default_observe_queue() -> usize {
    1024
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

fn default_p99_ms() -> f64 {
    10.0
}

fn default_warmup_max_ratio() -> f64 {
    3.0
}

fn default_max_batch_rows() -> u32 {
    1000
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"listen":"127.0.0.1:0","checkpoints":{
        "fraud.checkout":{"kind":"score","p99_ms":10.0,"durability":"async","max_batch_rows":1000,
                          "fallback":{"decision":"review","score":0.5}},
        "action.authorise":{"kind":"action","fallback":{"action":"a"}}}}"#;

    #[test]
    fn reads_the_documented_form_and_fills_defaults() {
        let config = ServerConfig::from_json(GOOD).unwrap();
        assert_eq!(config.max_message_bytes, 1_048_576);
        assert_eq!(config.checkpoints["action.authorise"].durability(), DurabilityClass::Written);
        assert_eq!(config.checkpoints["fraud.checkout"].durability(), DurabilityClass::Async);
        assert_eq!(config.checkpoints["fraud.checkout"].budget(), Duration::from_millis(10));
    }

    #[test]
    fn caps_are_read_and_every_mistake_in_them_is_named_at_once() {
        let with = |caps: &str| {
            let more = format!(r#""score":0.5}},"tier":1,"mode":"observe","caps":{caps}}}"#);
            GOOD.replacen(r#""score":0.5}}"#, &more, 1)
        };
        let good = with(
            r#"{"window_seconds":10,"max_count":5,"max_total_amount":100,"amount_feature":"amount",
                "on_cap":{"decision":"decline","score":1.0}}"#,
        );
        let config = ServerConfig::from_json(&good).unwrap();
        let checkpoint = &config.checkpoints["fraud.checkout"];
        assert_eq!((checkpoint.tier, checkpoint.mode), (1, Mode::Observe));
        let caps = checkpoint.caps.as_ref().unwrap();
        assert_eq!((caps.max_count, caps.max_total_amount), (Some(5), Some(100.0)));
        assert!(caps.answer().is_some());
        let refusing = ServerConfig::from_json(&with(r#"{"max_count":1,"on_cap":"refuse"}"#)).unwrap();
        let caps = refusing.checkpoints["fraud.checkout"].caps.clone().unwrap();
        assert_eq!((caps.window_seconds, caps.answer()), (60.0, None));

        let bad = with(r#"{"window_seconds":0,"max_single_amount":-1,"on_cap":{"action":"a"}}"#);
        let error = ServerConfig::from_json(&bad).unwrap_err().to_string();
        for says in [
            "\"window_seconds\" is 0",
            "\"max_single_amount\" is -1",
            "need \"amount_feature\"",
            "\"on_cap\" is",
        ] {
            assert!(error.contains(says), "{says:?} not in {error:?}");
        }
        let error = ServerConfig::from_json(&with(r#"{"amount_feature":"amount"}"#)).unwrap_err().to_string();
        assert!(error.contains("no limit is set") && error.contains("no limit on amounts is"), "{error}");
        let alone = GOOD.replacen(r#""fallback":{"action":"a"}"#, r#""caps":{"max_count":1}"#, 1);
        let error = ServerConfig::from_json(&alone).unwrap_err().to_string();
        assert!(error.contains("\"caps\" limit the fallback, and there is none"), "{error}");
    }

    #[test]
    fn names_every_mistake() {
        for (from, to, says) in [
            (r#""listen":"127.0.0.1:0","#, "", "neither \"listen\" nor \"uds\""),
            (r#""p99_ms":10.0"#, r#""p99_ms":0.0"#, "\"p99_ms\" is 0"),
            (r#""max_batch_rows":1000"#, r#""max_batch_rows":0"#, "\"max_batch_rows\" is 0"),
            (r#""score":0.5"#, r#""score":1.5"#, "from 0 to 1"),
            (r#"{"action":"a"}"#, r#"{"decision":"review","score":0.5}"#, "is of kind action"),
            (r#""p99_ms":10.0"#, r#""tier":4"#, "\"tier\" is 4"),
            (r#""p99_ms":10.0"#, r#""mode":"enforced""#, "unknown variant `enforced`"),
            (r#"{"decision":"review","score":0.5}"#, r#"{"action":"a"}"#, "is of kind score"),
            (r#""kind":"score""#, r#""kind":"rank""#, "unknown variant `rank`"),
            (r#""listen""#, r#""lisen""#, "unknown field `lisen`"),
            (r#""listen""#, r#""observe_cpu":0,"listen""#, "\"observe_cpu\" is 0"),
            (r#""listen""#, r#""observe_queue":0,"listen""#, "\"observe_queue\" is 0"),
            (r#""fraud.checkout""#, r#""fraud checkout""#, "letters, digits"),
            (r#""fraud.checkout""#, r#""liveness""#, "choose another"),
        ] {
            let bad = GOOD.replacen(from, to, 1);
            assert_ne!(bad, GOOD, "{from} is not in the example");
            let error = ServerConfig::from_json(&bad).unwrap_err().to_string();
            assert!(error.contains(says), "{says:?} not in {error:?}");
        }
    }
}
