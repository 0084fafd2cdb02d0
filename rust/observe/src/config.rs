//! Where a live server sends what the shadow pool observes.

use scorer_identity::tls::ClientTlsConfig;
use serde::{Deserialize, Serialize};

/// Most requests in one call.
pub const MAX_REQUESTS: usize = 4096;
/// Longest call that the pool reads, bytes: a batch of at most half of that, and the schemas' dictionaries.
pub const MAX_MESSAGE: usize = 2 << 20;

/// The way to the shadow pool.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ShadowPoolConfig {
    /// `host:port` of a server of role `shadow`; the host may be a name, looked up at each connection.
    pub address: String,
    /// TLS towards the pool; absent: plaintext.
    #[serde(default)]
    pub tls: Option<ClientTlsConfig>,
    /// What this server is called in the pool's counters. Default: where it listens.
    #[serde(default)]
    pub server: Option<String>,
    /// Requests that may wait to be sent; above, they are dropped and counted.
    #[serde(default = "default_queue")]
    pub queue: usize,
    /// Bytes that they may hold.
    #[serde(default = "default_queue_bytes")]
    pub queue_bytes: usize,
    /// Most requests in one call.
    #[serde(default = "default_batch")]
    pub batch: usize,
    /// How often the queue is looked at, milliseconds: what came meanwhile is sent together.
    #[serde(default = "default_linger_ms")]
    pub linger_ms: u64,
    /// How long the pool has for one call, milliseconds.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
}

// === impl ShadowPoolConfig ===

impl ShadowPoolConfig {
    /// Adds everything that is wrong to `wrong`.
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

/// `host:port`, which an URI can hold as it is.
fn is_target(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let plain = |host: &str| {
        !host.is_empty()
            && host.len() <= 253
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host_fits = bracketed.map_or_else(|| plain(host), |host| host.parse::<std::net::Ipv6Addr>().is_ok());
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    host_fits && digits && port.parse::<u16>().is_ok_and(|port| port > 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_host_and_a_port() {
        for good in ["127.0.0.1:7700", "[::1]:1", "scorer-shadow.pay.svc.cluster.local:7700", "a:65535"] {
            assert!(is_target(good), "{good}");
        }
        for bad in
            ["", "a", "a:", ":1", "a:0", "a:65536", "a:+1", "::1:7700", "[::1:7700", "http://a:1", "a b:1"]
        {
            assert!(!is_target(bad), "{bad}");
        }
    }
}
