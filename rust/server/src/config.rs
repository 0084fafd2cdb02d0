//! The server's configuration, read once at start.

mod features;
mod shadow;
mod tracing;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use scorer_engine::{CheckpointConfig, LogSettings, OutcomeSettings, PrivacyConfig};
use scorer_http::Network;
use scorer_identity::IdentityConfig;
use scorer_identity::tls::ServerTlsConfig;
use scorer_observe::ShadowPoolConfig;
use scorer_signing::Trust;
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::service_names::is_reserved;
pub use features::FeatureConfig;
pub use shadow::Role;
pub use tracing::TracingConfig;

/// Least and greatest default time limit for a peer to send a message or read a reply.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// The configuration of the data plane, which the control plane passes as JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Whether the server answers requests, or observes for live servers.
    #[serde(default)]
    pub role: Role,
    /// TCP address, `host:port`; port 0 lets the system choose.
    #[serde(default)]
    pub listen: Option<String>,
    /// Path of the Unix socket.
    #[serde(default)]
    pub uds: Option<PathBuf>,
    /// Mode of the Unix socket, which states the users that may connect.
    #[serde(default)]
    pub uds_mode: SocketMode,
    /// Address of the HTTP listener for `/metrics`, `/ready` and `/live`.
    #[serde(default)]
    pub metrics_listen: Option<String>,
    /// Number of threads that answer requests.
    #[serde(default = "default_threads")]
    pub threads: usize,
    /// Greatest length of a request message in bytes. For batches and inference requests see `max_batch_bytes`.
    #[serde(default = "default_max_message_bytes")]
    pub max_message_bytes: usize,
    /// Greatest length of the message of a batch or an inference request in bytes.
    #[serde(default = "default_max_batch_bytes")]
    pub max_batch_bytes: usize,
    /// Greatest number of open connections per listener. Further connections are closed at accept.
    #[serde(default = "default_max_connections")]
    pub max_connections: usize,
    /// Greatest number of open connections of one peer.
    #[serde(default = "default_max_connections_per_peer")]
    pub max_connections_per_peer: usize,
    /// Number of connections that one peer may open per second in the long run. It may open all of its connections at
    /// once.
    #[serde(default = "default_connections_per_second_per_peer")]
    pub connections_per_second_per_peer: u32,
    /// Time in seconds for which a peer may open no connections after one of them was closed because it broke a rule.
    #[serde(default = "default_misuse_pause_seconds")]
    pub misuse_pause_seconds: u64,
    /// Networks, in CIDR notation, whose addresses represent many clients. They may open connections at any rate.
    #[serde(default)]
    pub trusted_networks: Vec<String>,
    /// Greatest number of requests in flight on all connections. Further requests are answered with RESOURCE_EXHAUSTED.
    #[serde(default = "default_max_inflight")]
    pub max_inflight: usize,
    /// Greatest number of requests in flight of one peer. The default is half of `max_inflight`.
    #[serde(default)]
    pub max_inflight_per_peer: Option<usize>,
    /// Greatest total size of the messages of all requests in flight in bytes. A message that exceeds it is answered
    /// with RESOURCE_EXHAUSTED. Messages of up to 4 KiB are not counted, because `max_inflight` limits them.
    #[serde(default = "default_max_inflight_bytes")]
    pub max_inflight_bytes: usize,
    /// Greatest total size of the messages of one peer's requests in flight. The default is half of
    /// `max_inflight_bytes`.
    #[serde(default)]
    pub max_inflight_bytes_per_peer: Option<usize>,
    /// Time limit for the arrival of a request's message, in milliseconds. For the default see
    /// [`ServerConfig::body_timeout`].
    #[serde(default)]
    pub body_timeout_ms: Option<u64>,
    /// Time limit for a caller to read a reply, in milliseconds. The default is that of `body_timeout_ms`.
    #[serde(default)]
    pub reply_timeout_ms: Option<u64>,
    /// Time in milliseconds after which a connection is closed if its peer does not read.
    #[serde(default = "default_write_timeout_ms")]
    pub write_timeout_ms: u64,
    /// Time without a request after which a connection is closed, in seconds.
    #[serde(default = "default_idle_timeout_seconds")]
    pub idle_timeout_seconds: u64,
    /// Memory limit of the process for loading bundles, in bytes. The default is 85 % of the container's limit or of
    /// the machine's memory.
    #[serde(default)]
    pub memory_budget_bytes: Option<u64>,
    /// The rules for accepting bundles.
    #[serde(default)]
    pub bundles: Trust,
    /// Share of one core that an observe lane's thread may use, above 0 and at most 1.
    #[serde(default = "default_observe_cpu")]
    pub observe_cpu: f64,
    /// Number of requests that may wait for an observe lane. Further requests are dropped and counted.
    #[serde(default = "default_observe_queue")]
    pub observe_queue: usize,
    /// Number of threads that compute explanations on demand. They run at low priority.
    #[serde(default = "default_explain_threads")]
    pub explain_threads: usize,
    /// Greatest number of explanations that wait or run. Further ones are answered with RESOURCE_EXHAUSTED.
    #[serde(default = "default_explain_queue")]
    pub explain_queue: usize,
    /// The decision log. Without it nothing is recorded and exploration is off.
    #[serde(default)]
    pub log: Option<LogSettings>,
    /// The rules for storing data of requests.
    #[serde(default)]
    pub privacy: PrivacyConfig,
    /// A live server's connection to the shadow pool, if there is one.
    #[serde(default)]
    pub shadow_pool: Option<ShadowPoolConfig>,
    /// Traces, if requests are traced.
    #[serde(default)]
    pub tracing: Option<TracingConfig>,
    /// TLS of the TCP listener. Without it the listener accepts plaintext.
    #[serde(default)]
    pub tls: Option<ServerTlsConfig>,
    /// Authentication and roles of callers. Without it every client that can connect may call every method.
    #[serde(default)]
    pub identity: Option<IdentityConfig>,
    /// The rules for reported outcomes.
    #[serde(default)]
    pub outcomes: OutcomeSettings,
    /// Computed features. Without it, bundles with computed features are refused.
    #[serde(default)]
    pub features: Option<FeatureConfig>,
    /// The checkpoints by name.
    pub checkpoints: BTreeMap<String, CheckpointConfig>,
}

/// The mode of the Unix socket's file.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub enum SocketMode {
    /// Only the owner may connect.
    #[default]
    #[serde(rename = "0600")]
    Owner,
    /// The owner and the group may connect.
    #[serde(rename = "0660")]
    Group,
    /// Every user of the machine may connect.
    #[serde(rename = "0666")]
    Everyone,
}

// === impl SocketMode ===

impl SocketMode {
    pub(crate) fn bits(self) -> u32 {
        match self {
            SocketMode::Owner => 0o600,
            SocketMode::Group => 0o660,
            SocketMode::Everyone => 0o666,
        }
    }
}

// === impl ServerConfig ===

impl ServerConfig {
    /// Parses and checks a configuration.
    ///
    /// # Errors
    /// Returns [`ServerError::Config`], which names the key, the rule and the remedy.
    pub fn from_json(json: &str) -> Result<ServerConfig, ServerError> {
        let config: ServerConfig =
            serde_json::from_str(json).map_err(|error| ServerError::Config(error.to_string()))?;
        config.check()?;
        Ok(config)
    }

    /// Greatest number of requests in flight of one peer.
    #[must_use]
    pub fn inflight_per_peer(&self) -> usize {
        self.max_inflight_per_peer.unwrap_or((self.max_inflight / 2).max(1))
    }

    /// Greatest total size of the messages in flight of one peer, in bytes.
    #[must_use]
    pub fn inflight_bytes_per_peer(&self) -> usize {
        self.max_inflight_bytes_per_peer.unwrap_or((self.max_inflight_bytes / 2).max(1))
    }

    /// Time limit for the arrival of a request's message. The default is ten times the longest SLA, at least 250 ms and
    /// at most 5 s, because the answer to a later message is of no use to its caller.
    #[must_use]
    pub fn body_timeout(&self) -> Duration {
        self.body_timeout_ms.map_or_else(|| self.patience(), Duration::from_millis)
    }

    /// Time limit for a caller to read a reply. The default is that of the message.
    #[must_use]
    pub fn reply_timeout(&self) -> Duration {
        self.reply_timeout_ms.map_or_else(|| self.patience(), Duration::from_millis)
    }

    /// The networks whose addresses represent many clients.
    pub(crate) fn trusted_networks(&self) -> Vec<Network> {
        self.trusted_networks.iter().filter_map(|network| network.parse().ok()).collect()
    }

    fn patience(&self) -> Duration {
        let slowest = self.checkpoints.values().map(CheckpointConfig::sla).max().unwrap_or_default();
        slowest.saturating_mul(10).clamp(PATIENCE.0, PATIENCE.1)
    }

    /// Checks the rules that the types do not express.
    ///
    /// # Errors
    /// Returns all faults, separated by `; `.
    pub fn check(&self) -> Result<(), ServerError> {
        let mut wrong = Vec::new();
        if self.listen.is_none() && self.uds.is_none() {
            wrong.push("neither \"listen\" nor \"uds\" is set; give at least one address".to_owned());
        }
        for (key, value, low, high) in [
            ("threads", self.threads, 1, 256),
            ("max_message_bytes", self.max_message_bytes, 1024, 64 << 20),
            ("max_batch_bytes", self.max_batch_bytes, 1024, 64 << 20),
            ("max_connections", self.max_connections, 1, 1 << 20),
            ("max_connections_per_peer", self.max_connections_per_peer, 1, 1 << 20),
            ("connections_per_second_per_peer", self.connections_per_second_per_peer as usize, 1, 1 << 20),
            ("misuse_pause_seconds", millis(Some(self.misuse_pause_seconds)), 1, 3600),
            ("max_inflight", self.max_inflight, 1, 1 << 20),
            ("max_inflight_per_peer", self.inflight_per_peer(), 1, self.max_inflight),
            ("max_inflight_bytes", self.max_inflight_bytes, 1 << 20, 1 << 40),
            ("max_inflight_bytes_per_peer", self.inflight_bytes_per_peer(), 1 << 16, self.max_inflight_bytes),
            ("body_timeout_ms", millis(self.body_timeout_ms), 1, 60_000),
            ("reply_timeout_ms", millis(self.reply_timeout_ms), 1, 60_000),
            ("write_timeout_ms", millis(Some(self.write_timeout_ms)), 1, 600_000),
            ("idle_timeout_seconds", millis(Some(self.idle_timeout_seconds)), 1, 86_400),
            ("observe_queue", self.observe_queue, 1, 1 << 16),
            ("explain_threads", self.explain_threads, 1, 64),
            ("explain_queue", self.explain_queue, 1, 1 << 16),
        ] {
            if !(low..=high).contains(&value) {
                wrong.push(format!("\"{key}\" is {value}; use {low} to {high}"));
            }
        }
        if !(self.observe_cpu > 0.0 && self.observe_cpu <= 1.0) {
            wrong.push(format!("\"observe_cpu\" is {}; use a number above 0, at most 1", self.observe_cpu));
        }
        for network in &self.trusted_networks {
            if let Err(error) = network.parse::<Network>() {
                wrong.push(format!("\"trusted_networks\": {error}"));
            }
        }
        if self.checkpoints.is_empty() {
            wrong.push("\"checkpoints\" is empty; configure at least one".to_owned());
        }
        if let Some(pool) = &self.shadow_pool {
            if self.role == Role::Shadow {
                wrong.push(
                    "\"shadow_pool\" is set and the server is a shadow pool itself; live servers send, remove it"
                        .to_owned(),
                );
            }
            pool.check(&mut wrong);
        }
        if let Some(tracing) = &self.tracing {
            tracing.check(&mut wrong);
        }
        if let Some(tls) = &self.tls {
            tls.check(&mut wrong);
            if tls.knows_clients() && self.identity.is_none() {
                wrong.push(
                    "\"tls\": client_ca is set and \"identity\" is not, so certificates would grant nothing; add \
                     grants to it"
                        .to_owned(),
                );
            }
        }
        if let Some(identity) = &self.identity {
            identity.check(&mut wrong);
        } else if self.uds_mode != SocketMode::Owner {
            wrong.push(
                "\"uds_mode\" lets other users connect and \"identity\" is not set; grant roles to uid:... there"
                    .to_owned(),
            );
        }
        self.outcomes.check(&mut wrong);
        if let Some(features) = &self.features {
            features.check(&mut wrong);
        }
        for (name, checkpoint) in &self.checkpoints {
            checkpoint.check(name, &mut wrong);
            wrong.extend(check_name(name).err());
        }
        if wrong.is_empty() { Ok(()) } else { Err(ServerError::Config(wrong.join("; "))) }
    }
}

/// Checks that the name of a checkpoint is not reserved for health checks.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if is_reserved(name) {
        return Err(format!("checkpoint {name:?}: health checks use this name; choose another"));
    }
    Ok(())
}

/// Returns a time for the check of its range. A time that is not set passes every check.
fn millis(value: Option<u64>) -> usize {
    value.map_or(1, |value| usize::try_from(value).unwrap_or(usize::MAX))
}

fn default_max_batch_bytes() -> usize {
    1 << 20
}

fn default_max_connections_per_peer() -> usize {
    256
}

fn default_connections_per_second_per_peer() -> u32 {
    32
}

fn default_misuse_pause_seconds() -> u64 {
    10
}

fn default_write_timeout_ms() -> u64 {
    5000
}

fn default_idle_timeout_seconds() -> u64 {
    300
}

fn default_threads() -> usize {
    1
}

fn default_max_message_bytes() -> usize {
    256 << 10
}

fn default_max_connections() -> usize {
    1024
}

fn default_max_inflight() -> usize {
    2048
}

fn default_max_inflight_bytes() -> usize {
    128 << 20
}

fn default_observe_cpu() -> f64 {
    0.25
}

fn default_observe_queue() -> usize {
    1024
}

fn default_explain_threads() -> usize {
    1
}

fn default_explain_queue() -> usize {
    32
}

#[cfg(test)]
mod tests {
    use scorer_engine::{DurabilityClass, Mode};

    use super::*;

    const GOOD: &str = r#"{"listen":"127.0.0.1:0","checkpoints":{
        "fraud.checkout":{"kind":"score","p99_ms":10.0,"durability":"async","max_batch_rows":1000,
                          "fallback":{"decision":"review","score":0.5}},
        "action.authorise":{"kind":"action","fallback":{"action":"a"}}}}"#;

    #[test]
    fn reads_the_documented_form_and_fills_defaults() {
        let config = ServerConfig::from_json(GOOD).unwrap();
        assert_eq!(config.max_message_bytes, 262_144);
        assert_eq!((config.inflight_per_peer(), config.body_timeout()), (1024, PATIENCE.0));
        assert_eq!(config.checkpoints["action.authorise"].durability(), DurabilityClass::Written);
        assert_eq!(config.checkpoints["fraud.checkout"].durability(), DurabilityClass::Async);
        assert_eq!(config.checkpoints["fraud.checkout"].sla(), Duration::from_millis(10));
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
            (r#""listen""#, r#""explain_queue":0,"listen""#, "\"explain_queue\" is 0"),
            (r#""listen""#, r#""explain_threads":65,"listen""#, "\"explain_threads\" is 65"),
            (r#""listen""#, r#""misuse_pause_seconds":0,"listen""#, "\"misuse_pause_seconds\" is 0"),
            (
                r#""listen""#,
                r#""trusted_networks":["10.0.0.0/40"],"listen""#,
                "\"10.0.0.0/40\" is not a network",
            ),
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
