//! The settings of the connection to Redis.

use std::path::PathBuf;
use std::time::Duration;

use scorer_identity::tls::ClientTlsConfig;
use scorer_outbound::is_target;
use serde::{Deserialize, Serialize};

/// The connection to Redis or Valkey, and the limits of reads.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct RedisConfig {
    /// `host:port` of the server. A host name is resolved for each connection.
    pub address: String,
    /// TLS settings. Without them the connection is plaintext.
    #[serde(default)]
    pub tls: Option<ClientTlsConfig>,
    /// Name of the user; empty: the default user.
    #[serde(default)]
    pub user: String,
    /// File with the password of the user. It is read for each connection.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// Number of the database.
    #[serde(default)]
    pub database: u32,
    /// The beginning of every key.
    #[serde(default = "default_prefix")]
    pub prefix: String,
    /// Number of connections for reads.
    #[serde(default = "default_connections")]
    pub connections: usize,
    /// Greatest number of reads without a reply on all connections. Further reads fail at once.
    #[serde(default = "default_max_in_flight")]
    pub max_in_flight: usize,
    /// Time in milliseconds after which a read is repeated on another connection; 0: never.
    #[serde(default = "default_hedge_ms")]
    pub hedge_ms: u64,
    /// Greatest share of reads that are repeated.
    #[serde(default = "default_hedge_share")]
    pub hedge_share: f64,
    /// Time in milliseconds without a reply after which a connection is replaced, and limit of the time to connect.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
}

// === impl RedisConfig ===

impl RedisConfig {
    /// Appends a message for each invalid setting to `wrong`.
    pub fn check(&self, wrong: &mut Vec<String>) {
        if !is_target(&self.address) {
            wrong.push(format!(
                "\"features.redis\": address {:?}; write host:port with a port from 1 to 65535",
                self.address
            ));
        }
        if let Some(tls) = &self.tls {
            tls.check("features.redis.tls", wrong);
        }
        if !self.user.is_empty() && self.password_file.is_none() {
            wrong.push("\"features.redis\": user needs a password; set password_file".to_owned());
        }
        if self.prefix.len() > 64 || !self.prefix.bytes().all(|byte| byte.is_ascii_graphic()) {
            wrong.push("\"features.redis\": prefix has at most 64 visible ASCII characters".to_owned());
        }
        let whole = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        for (key, value, low, high) in [
            ("database", self.database as usize, 0, 1 << 20),
            ("connections", self.connections, 1, 64),
            ("max_in_flight", self.max_in_flight, 1, 1 << 16),
            ("hedge_ms", whole(self.hedge_ms), 0, 1000),
            ("timeout_ms", whole(self.timeout_ms), 10, 60_000),
        ] {
            if !(low..=high).contains(&value) {
                wrong.push(format!("\"features.redis\": {key} is {value}; use {low} to {high}"));
            }
        }
        if !(0.0..=1.0).contains(&self.hedge_share) {
            let share = self.hedge_share;
            wrong.push(format!("\"features.redis\": hedge_share is {share}; use a number from 0 to 1"));
        }
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

fn default_prefix() -> String {
    "scorer:".to_owned()
}

fn default_connections() -> usize {
    2
}

fn default_max_in_flight() -> usize {
    1024
}

fn default_hedge_ms() -> u64 {
    2
}

fn default_hedge_share() -> f64 {
    0.05
}

fn default_timeout_ms() -> u64 {
    250
}
