//! The configuration of a live server's connection to the shadow pool.

use scorer_identity::tls::ClientTlsConfig;
use scorer_outbound::is_target;
use serde::{Deserialize, Serialize};

/// Greatest number of requests in one call.
pub const MAX_REQUESTS: usize = 4096;
/// Size of the largest call that the pool reads, in bytes: a batch of at most half of that, and the dictionaries of the
/// schemas.
pub const MAX_MESSAGE: usize = 2 << 20;

/// The connection to the shadow pool.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ShadowPoolConfig {
    /// `host:port` of a server of role `shadow`. A host name is resolved for each connection.
    pub address: String,
    /// TLS settings of the connection. Without them the connection is plaintext.
    #[serde(default)]
    pub tls: Option<ClientTlsConfig>,
    /// Name of this server in the pool's counters. The default is the address on which it listens.
    #[serde(default)]
    pub server: Option<String>,
    /// Number of requests that may wait to be sent. Further requests are dropped and counted.
    #[serde(default = "default_queue")]
    pub queue: usize,
    /// Number of bytes that the waiting requests may hold.
    #[serde(default = "default_queue_bytes")]
    pub queue_bytes: usize,
    /// Greatest number of requests in one call.
    #[serde(default = "default_batch")]
    pub batch: usize,
    /// Interval, in milliseconds, at which the queue is read. Requests that arrive in one interval are sent together.
    #[serde(default = "default_linger_ms")]
    pub linger_ms: u64,
    /// Timeout of one call, in milliseconds.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
}

// === impl ShadowPoolConfig ===

impl ShadowPoolConfig {
    /// Appends a message for each invalid setting to `wrong`.
    pub fn check(&self, wrong: &mut Vec<String>) {
        if !is_target(&self.address) {
            wrong.push(format!(
                "\"shadow_pool\": address {:?}; write host:port with a port from 1 to 65535",
                self.address
            ));
        }
        if let Some(tls) = &self.tls {
            tls.check("shadow_pool.tls", wrong);
        }
        for (key, value, low, high) in [
            ("queue", self.queue, 1, 1 << 24),
            ("queue_bytes", self.queue_bytes, 1 << 10, 1 << 34),
            ("batch", self.batch, 1, MAX_REQUESTS),
            ("linger_ms", self.linger_ms as usize, 1, 1000),
            ("timeout_ms", self.timeout_ms as usize, 1, 60_000),
        ] {
            if !(low..=high).contains(&value) {
                wrong.push(format!("\"shadow_pool\": {key} is {value}; use {low} to {high}"));
            }
        }
    }
}

fn default_queue() -> usize {
    65_536
}

fn default_queue_bytes() -> usize {
    16 << 20
}

fn default_batch() -> usize {
    256
}

fn default_linger_ms() -> u64 {
    20
}

fn default_timeout_ms() -> u64 {
    2000
}
